/*
 * Registration of a board with the NVLink fabric.
 */
#include <string.h>

#include "sim.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	if (!gpu->fabric.supported || sim_lacks(gpu, SIM_FEATURE_FABRIC))
		return NVML_ERROR_NOT_SUPPORTED;
	memcpy(info->clusterUuid, gpu->fabric.cluster_uuid, sizeof(info->clusterUuid));
	info->status = (nvmlReturn_t)sim_load(&gpu->fabric.status);
	info->cliqueId = sim_load(&gpu->fabric.clique_id);
	info->state = (nvmlGpuFabricState_t)sim_load(&gpu->fabric.state);
	return NVML_SUCCESS;
}

static void fill_v2(const struct sim_gpu *gpu, nvmlGpuFabricInfo_v2_t *info)
{
	memcpy(info->clusterUuid, gpu->fabric.cluster_uuid, sizeof(info->clusterUuid));
	info->status = (nvmlReturn_t)sim_load(&gpu->fabric.status);
	info->cliqueId = sim_load(&gpu->fabric.clique_id);
	info->state = (nvmlGpuFabricState_t)sim_load(&gpu->fabric.state);
	info->healthMask = sim_load(&gpu->fabric.health_mask);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!gpu->fabric.supported || sim_lacks(gpu, SIM_FEATURE_FABRIC))
		return NVML_ERROR_NOT_SUPPORTED;
	/* Version 3 is version 2 with the summary behind it. */
	fill_v2(gpu, (nvmlGpuFabricInfo_v2_t *)info);
	if (info->version == nvmlGpuFabricInfo_v3)
		info->healthSummary = (unsigned char)sim_load(&gpu->fabric.health_summary);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	if (!gpu->fabric.supported || sim_lacks(gpu, SIM_FEATURE_FABRIC))
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof(*info));
	memcpy(info->clusterUuid, gpu->fabric.cluster_uuid, sizeof(info->clusterUuid));
	info->status = (nvmlReturn_t)sim_load(&gpu->fabric.status);
	info->state = (nvmlGpuFabricState_t)sim_load(&gpu->fabric.state);
	info->healthMask = sim_load(&gpu->fabric.health_mask);
	info->healthSummary = (unsigned char)sim_load(&gpu->fabric.health_summary);
	info->numCliques = 2;
	for (unsigned int i = 0; i < info->numCliques; i++) {
		info->cliques[i].type = (unsigned char)i; /* unicast pointer, then multicast pointer */
		info->cliques[i].id = sim_load(&gpu->fabric.clique_id);
	}
	return NVML_SUCCESS;
}

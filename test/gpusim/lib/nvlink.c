/*
 * NVLink: the links of a board and who reaches whom.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

/* A link number is valid up to the count of this board, not up to NVML_NVLINK_MAX_LINKS. */
static nvmlReturn_t find_link(struct sim_gpu *gpu, unsigned int number, struct sim_link **link)
{
	if (gpu->link_count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (number >= gpu->link_count || number >= SIM_MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*link = &gpu->links[number];
	return NVML_SUCCESS;
}

#define SIM_LINK(device, gpu, number, link)                          \
	SIM_DEVICE(device, gpu);                                     \
	struct sim_link *link = NULL;                                \
	do {                                                         \
		nvmlReturn_t link_rc = find_link(gpu, number, &link); \
		if (link_rc != NVML_SUCCESS)                         \
			return link_rc;                              \
	} while (0)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number, nvmlEnableState_t *active)
{
	SIM_LINK(device, gpu, number, link);
	SIM_REQUIRE(active != NULL);
	*active = sim_load(&link->active) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

/* nvml.h: the answer is an nvmlNvlinkVersion_t, which numbers releases of the link ("2.2", "3.1"),
 * not its generation. */
static unsigned int link_release(unsigned int generation)
{
	switch (generation) {
	case 1: return NVML_NVLINK_VERSION_1_0;
	case 2: return NVML_NVLINK_VERSION_2_0;
	case 3: return NVML_NVLINK_VERSION_3_0;
	case 4: return NVML_NVLINK_VERSION_4_0;
	case 5: return NVML_NVLINK_VERSION_5_0;
	case 6: return NVML_NVLINK_VERSION_6_0;
	default: return NVML_NVLINK_VERSION_INVALID;
	}
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number, unsigned int *version)
{
	SIM_LINK(device, gpu, number, link);
	(void)link;
	SIM_REQUIRE(version != NULL);
	*version = link_release(gpu->link_version);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number,
	nvmlNvLinkCapability_t capability, unsigned int *result)
{
	SIM_LINK(device, gpu, number, link);
	(void)link;
	SIM_REQUIRE(result != NULL && (unsigned int)capability < NVML_NVLINK_CAP_COUNT);
	*result = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number,
	nvmlIntNvLinkDeviceType_t *type)
{
	SIM_LINK(device, gpu, number, link);
	SIM_REQUIRE(type != NULL);
	*type = (nvmlIntNvLinkDeviceType_t)link->remote;
	return NVML_SUCCESS;
}

/* Behind a switch the far end has no address that means anything: the driver gives all ones. */
static void switch_address(nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof(*pci));
	pci->domain = 0xffffffff;
	pci->bus = 0xff;
	pci->device = 0xff;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "FFFF:FF:FF.0");
	snprintf(pci->busId, sizeof(pci->busId), "FFFFFFFF:FF:FF.0");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
	SIM_LINK(device, gpu, number, link);
	SIM_REQUIRE(pci != NULL);
	if (link->remote == SIM_REMOTE_GPU && link->peer_gpu >= 0 && link->peer_gpu < (int)SIM_MAX_GPUS)
		sim_pci_info(&sim_state()->gpus[link->peer_gpu], pci);
	else
		switch_address(pci);
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int number,
	nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
	SIM_LINK(device, gpu, number, link);
	SIM_REQUIRE(value != NULL && (unsigned int)counter < NVML_NVLINK_ERROR_COUNT);
	switch (counter) {
	case NVML_NVLINK_ERROR_DL_REPLAY:
		*value = link->replay_errors;
		break;
	case NVML_NVLINK_ERROR_DL_RECOVERY:
		*value = link->recovery_errors;
		break;
	case NVML_NVLINK_ERROR_DL_CRC_FLIT:
		*value = link->crc_errors;
		break;
	default:
		*value = 0;
	}
	return NVML_SUCCESS;
}

static int fabric_ready(const struct sim_gpu *gpu)
{
	if (!gpu->fabric.required)
		return 1;
	return sim_load(&gpu->fabric.state) == NVML_GPU_FABRIC_STATE_COMPLETED && sim_load(&gpu->fabric.status) == NVML_SUCCESS;
}

static int same_clique(const struct sim_gpu *a, const struct sim_gpu *b)
{
	if (!a->fabric.required || !b->fabric.required)
		return 1;
	return sim_load(&a->fabric.clique_id) == sim_load(&b->fabric.clique_id) &&
		memcmp(a->fabric.cluster_uuid, b->fabric.cluster_uuid, sizeof(a->fabric.cluster_uuid)) == 0;
}

static int on_plane(const struct sim_gpu *gpu, unsigned int plane)
{
	for (unsigned int i = 0; i < gpu->link_count && i < SIM_MAX_LINKS; i++) {
		if (sim_load(&gpu->links[i].active) && gpu->links[i].plane == plane)
			return 1;
	}
	return 0;
}

static int usable(const struct sim_gpu *gpu)
{
	return !sim_load(&gpu->lost) && !sim_load(&gpu->absent) && !sim_load(&gpu->mig.current_mode);
}

int sim_nvlink_reaches(const struct sim_gpu *a, const struct sim_gpu *b)
{
	/* A board in MIG mode has no peer access. */
	if (!usable(a) || !usable(b))
		return 0;
	int switched = fabric_ready(a) && fabric_ready(b) && same_clique(a, b);
	for (unsigned int i = 0; i < a->link_count && i < SIM_MAX_LINKS; i++) {
		const struct sim_link *link = &a->links[i];
		if (!sim_load(&link->active))
			continue;
		if (link->remote == SIM_REMOTE_GPU && link->peer_gpu == (int)sim_slot(b))
			return 1;
		if (link->remote == SIM_REMOTE_SWITCH && switched && on_plane(b, link->plane))
			return 1;
	}
	return 0;
}

static int pcie_reaches(const struct sim_gpu *a, const struct sim_gpu *b)
{
	return usable(a) && usable(b) && sim_level(a, b) <= sim_state()->peer_max_level;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
	nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
	SIM_DEVICE(device1, a);
	SIM_DEVICE(device2, b);
	SIM_REQUIRE(status != NULL && a != b && (unsigned int)index < NVML_P2P_CAPS_INDEX_UNKNOWN);
	int nvlink = sim_nvlink_reaches(a, b);
	int ok = nvlink || pcie_reaches(a, b);
	if (index == NVML_P2P_CAPS_INDEX_NVLINK)
		ok = nvlink;
	else if (index == NVML_P2P_CAPS_INDEX_PCI)
		ok = pcie_reaches(a, b);
	*status = ok ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

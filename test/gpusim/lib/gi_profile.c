/*
 * Profiles of GPU instances and where they can lie. All of it is answered with MIG off too.
 */
#include <string.h>

#include "mig.h"

/*
 * Finds a profile by the number of the header: beyond the last is an error, a gap is not supported.
 * A board may have numbers that the header does not know, as with a newer driver.
 */
static nvmlReturn_t by_enum(const struct sim_gpu *gpu, unsigned int number, const struct sim_profile **profile)
{
	int at = gpu->mig.capable ? sim_profile_by_enum(&gpu->mig, number) : -1;
	SIM_REQUIRE(at >= 0 || number < NVML_GPU_INSTANCE_PROFILE_COUNT);
	if (at < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*profile = &gpu->mig.profiles[at];
	return NVML_SUCCESS;
}

static void fill_v2(const struct sim_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	info->id = profile->profile_id;
	info->isP2pSupported = 0;
	info->sliceCount = profile->slice_count;
	info->instanceCount = profile->instance_count;
	info->multiprocessorCount = profile->multiprocessors;
	info->copyEngineCount = profile->copy_engines;
	info->decoderCount = profile->decoders;
	info->encoderCount = profile->encoders;
	info->jpegCount = profile->jpeg;
	info->ofaCount = profile->ofa;
	info->memorySizeMB = profile->memory_mi_b;
	sim_copy_text(info->name, sizeof(info->name), profile->name);
}

/* The two versions differ in their fields' places: one lacks isP2pSupported. */
static nvmlReturn_t fill(const struct sim_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	nvmlGpuInstanceProfileInfo_v2_t v2 = {.version = info->version};
	fill_v2(profile, &v2);
	if (info->version == nvmlGpuInstanceProfileInfo_v2) {
		*info = v2;
		return NVML_SUCCESS;
	}
	nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)info;
	v3->id = v2.id;
	v3->sliceCount = v2.sliceCount;
	v3->instanceCount = v2.instanceCount;
	v3->multiprocessorCount = v2.multiprocessorCount;
	v3->copyEngineCount = v2.copyEngineCount;
	v3->decoderCount = v2.decoderCount;
	v3->encoderCount = v2.encoderCount;
	v3->jpegCount = v2.jpegCount;
	v3->ofaCount = v2.ofaCount;
	v3->memorySizeMB = v2.memorySizeMB;
	memcpy(v3->name, v2.name, sizeof(v3->name));
	v3->capabilities = profile->capabilities;
	return NVML_SUCCESS;
}

static int known_version(const nvmlGpuInstanceProfileInfo_v2_t *info)
{
	return info->version == nvmlGpuInstanceProfileInfo_v2 || info->version == nvmlGpuInstanceProfileInfo_v3;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
	nvmlGpuInstanceProfileInfo_t *info)
{
	const struct sim_profile *profile = NULL;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	nvmlReturn_t rc = by_enum(gpu, number, &profile);
	if (rc != NVML_SUCCESS)
		return rc;
	nvmlGpuInstanceProfileInfo_v2_t v2 = {0};
	fill_v2(profile, &v2);
	/* Version 2 is version 1 between a version and a name. */
	memcpy(info, &v2.id, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
	info->memorySizeMB = v2.memorySizeMB;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
	nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct sim_profile *profile = NULL;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	if (!known_version(info))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t rc = by_enum(gpu, number, &profile);
	return rc == NVML_SUCCESS ? fill(profile, info) : rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
	nvmlGpuInstanceProfileInfo_v2_t *info)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(info != NULL);
	if (!known_version(info))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	int at = gpu->mig.capable ? sim_profile_by_id(&gpu->mig, id) : -1;
	return at < 0 ? NVML_ERROR_NOT_SUPPORTED : fill(&gpu->mig.profiles[at], info);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
	nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL);
	int at = gpu->mig.capable ? sim_profile_by_id(&gpu->mig, id) : -1;
	if (at < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct sim_profile *profile = &gpu->mig.profiles[at];
	if (placements != NULL && *count < profile->placement_count)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	*count = profile->placement_count;
	for (unsigned int i = 0; placements != NULL && i < profile->placement_count; i++)
		placements[i] = (nvmlGpuInstancePlacement_t){.start = profile->placement_start[i], .size = profile->size};
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2);

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL);
	int at = gpu->mig.capable ? sim_profile_by_id(&gpu->mig, id) : -1;
	if (at < 0 || !sim_load(&gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	*count = sim_remaining(&gpu->mig, at);
	return NVML_SUCCESS;
}

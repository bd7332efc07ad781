/*
 * Profiles of compute instances: how the slices of a GPU instance can be shared out. The
 * number of the header is also the id that boards report.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

/* Slices of each profile of the header; 0 where boards report none. */
static unsigned int slices_of(unsigned int profile)
{
	switch (profile) {
	case NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE:
		return 1;
	case NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE:
		return 2;
	case NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE:
		return 3;
	case NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE:
		return 4;
	case NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE:
		return 6;
	case NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE:
		return 7;
	case NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE:
		return 8;
	default:
		return 0;
	}
}

/* The slices that a profile takes of a GPU instance, 0 if that has no such profile. */
unsigned int sim_ci_slices(const struct sim_gi *gi, unsigned int profile)
{
	unsigned int slices = slices_of(profile), whole = gi->profile->slice_count;
	if (slices == 0 || slices > whole)
		return 0;
	/* Three slices fit into four, yet boards offer them from six on, as they do four. */
	if (slices == whole || slices <= 2 || (slices <= 4 && whole >= 6))
		return slices;
	return 0;
}

/* Where instances may start: at multiples of the power of two that holds them. */
unsigned int sim_ci_step(unsigned int slices)
{
	unsigned int step = 1;
	while (step < slices)
		step *= 2;
	return step;
}

static unsigned int placements(const struct sim_gi *gi, unsigned int slices)
{
	unsigned int count = 0;
	for (unsigned int start = 0; start + slices <= gi->profile->slice_count; start += sim_ci_step(slices))
		count++;
	return count;
}

/* A part of a GPU instance has the multiprocessors of as many single slices: what is spare
 * goes to the whole. */
unsigned int sim_ci_multiprocessors(const struct sim_gi *gi, unsigned int slices)
{
	const struct sim_mig *mig = &gi->gpu->mig;
	if (slices == gi->profile->slice_count)
		return gi->profile->multiprocessors;
	int single = sim_profile_by_enum(mig, NVML_GPU_INSTANCE_PROFILE_1_SLICE);
	if (single >= 0)
		return slices * mig->profiles[single].multiprocessors;
	return slices * gi->profile->multiprocessors / gi->profile->slice_count;
}

/* "MIG 3g.40gb" for the whole, "MIG 1c.3g.40gb" for a part. */
void sim_ci_name(const struct sim_gi *gi, unsigned int slices, char *out, size_t size)
{
	static const char prefix[] = "MIG ";
	const char *name = gi->profile->name;
	if (slices == gi->profile->slice_count || strncmp(name, prefix, sizeof(prefix) - 1) != 0)
		snprintf(out, size, "%s", name);
	else
		snprintf(out, size, "%s%uc.%s", prefix, slices, name + sizeof(prefix) - 1);
}

static nvmlReturn_t find(const struct sim_gi *gi, unsigned int profile, unsigned int engines, unsigned int *slices)
{
	SIM_REQUIRE(profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && engines < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
	*slices = sim_ci_slices(gi, profile);
	return *slices > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
	unsigned int engines, nvmlComputeInstanceProfileInfo_t *info)
{
	unsigned int slices = 0;
	SIM_GI(instance, gi);
	SIM_REQUIRE(info != NULL);
	nvmlReturn_t rc = find(&gi, profile, engines, &slices);
	if (rc != NVML_SUCCESS)
		return rc;
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = profile,
		.sliceCount = slices,
		.instanceCount = placements(&gi, slices),
		.multiprocessorCount = sim_ci_multiprocessors(&gi, slices),
		.sharedCopyEngineCount = gi.profile->copy_engines,
		.sharedDecoderCount = gi.profile->decoders,
		.sharedEncoderCount = gi.profile->encoders,
		.sharedJpegCount = gi.profile->jpeg,
		.sharedOfaCount = gi.profile->ofa,
	};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
	unsigned int engines, nvmlComputeInstanceProfileInfo_v2_t *info)
{
	unsigned int slices = 0;
	SIM_GI(instance, gi);
	SIM_REQUIRE(info != NULL);
	if (info->version != nvmlComputeInstanceProfileInfo_v2 && info->version != nvmlComputeInstanceProfileInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t rc = find(&gi, profile, engines, &slices);
	if (rc != NVML_SUCCESS)
		return rc;
	info->id = profile;
	info->sliceCount = slices;
	info->instanceCount = placements(&gi, slices);
	info->multiprocessorCount = sim_ci_multiprocessors(&gi, slices);
	info->sharedCopyEngineCount = gi.profile->copy_engines;
	info->sharedDecoderCount = gi.profile->decoders;
	info->sharedEncoderCount = gi.profile->encoders;
	info->sharedJpegCount = gi.profile->jpeg;
	info->sharedOfaCount = gi.profile->ofa;
	memset(info->name, 0, sizeof(info->name));
	sim_ci_name(&gi, slices, info->name, sizeof(info->name));
	/* Version 3 is version 2 with the capabilities behind it. */
	if (info->version == nvmlComputeInstanceProfileInfo_v3)
		((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities =
			gi.profile->capabilities & NVML_GPU_INSTANCE_PROFILE_CAPS_GFX ? NVML_COMPUTE_INSTANCE_PROFILE_CAPS_GFX : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile,
	nvmlComputeInstancePlacement_t *list, unsigned int *count)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(count != NULL);
	unsigned int slices = sim_ci_slices(&gi, profile);
	if (slices == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int number = placements(&gi, slices);
	if (list != NULL && *count < number)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	*count = number;
	for (unsigned int i = 0; list != NULL && i < number; i++)
		list[i] = (nvmlComputeInstancePlacement_t){.start = i * sim_ci_step(slices), .size = slices};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile,
	unsigned int *count)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(count != NULL);
	unsigned int slices = sim_ci_slices(&gi, profile);
	if (slices == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int taken = sim_ci_taken(gi.gi);
	*count = 0;
	for (unsigned int start = 0; start + slices <= gi.profile->slice_count; start += sim_ci_step(slices))
		*count += (taken & ((1u << slices) - 1) << start) == 0;
	return NVML_SUCCESS;
}

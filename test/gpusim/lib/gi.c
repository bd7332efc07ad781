/*
 * GPU instances.
 */
#include "mig.h"

static int possible(const struct sim_profile *profile, const nvmlGpuInstancePlacement_t *placement)
{
	for (unsigned int i = 0; i < profile->placement_count; i++) {
		if (profile->placement_start[i] == placement->start && profile->size == placement->size)
			return 1;
	}
	return 0;
}

/* Between begin and end. */
static nvmlReturn_t make(struct sim_gpu *gpu, int profile, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *out)
{
	struct sim_mig *mig = &gpu->mig;
	struct sim_usage usage;
	unsigned int start = placement != NULL ? placement->start : 0, size = mig->profiles[profile].size;
	if (!sim_load(&mig->current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	sim_usage_of(mig, &usage);
	if (placement != NULL ? !sim_fits(mig, &usage, profile, start) : !sim_choose(mig, &usage, profile, &start))
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	/* The number of the placement in a tree that halves the board: 0 the whole, 1 and 2 the halves. */
	unsigned int id = mig->memory_units / size - 1 + start / size;
	if (id >= SIM_MAX_GPU_INSTANCES || sim_load(&mig->instances[id].used))
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	if (sim_caps_add(gpu, id, SIM_NO_INSTANCE) != 0) {
		sim_caps_remove(gpu, id, SIM_NO_INSTANCE);
		return NVML_ERROR_OPERATING_SYSTEM;
	}
	struct sim_gpu_instance *gi = &mig->instances[id];
	sim_store(&gi->profile_index, (unsigned int)profile);
	sim_store(&gi->start, start);
	sim_store(&gi->size, size);
	sim_store(&gi->epoch, __atomic_add_fetch(&mig->epoch, 1, __ATOMIC_ACQ_REL));
	sim_store(&gi->used, 1);
	*out = sim_gi_handle(gpu, id);
	return NVML_SUCCESS;
}

static nvmlReturn_t create(struct sim_gpu *gpu, unsigned int profile_id, const nvmlGpuInstancePlacement_t *placement,
	nvmlGpuInstance_t *out)
{
	if (!gpu->mig.capable || !sim_load(&gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	int profile = sim_profile_by_id(&gpu->mig, profile_id);
	SIM_REQUIRE(profile >= 0);
	SIM_REQUIRE(placement == NULL || possible(&gpu->mig.profiles[profile], placement));
	nvmlReturn_t rc = sim_mig_begin(gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	rc = make(gpu, profile, placement, out);
	sim_mig_end(gpu);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instance)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(instance != NULL);
	return create(gpu, profile_id, NULL, instance);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
	const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *instance)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(placement != NULL && instance != NULL);
	return create(gpu, profile_id, placement, instance);
}

static int has_compute_instances(const struct sim_gpu_instance *gi)
{
	for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
		if (sim_load(&gi->compute_instances[ci].used))
			return 1;
	}
	return 0;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	SIM_GI(instance, gi);
	unsigned int epoch = sim_load(&gi.gi->epoch);
	nvmlReturn_t rc = sim_mig_begin(gi.gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	if (!sim_load(&gi.gi->used) || sim_load(&gi.gi->epoch) != epoch) {
		rc = NVML_ERROR_INVALID_ARGUMENT;
	} else if (has_compute_instances(gi.gi) || sim_mig_clients(gi.gpu, gi.id, SIM_NO_INSTANCE)) {
		rc = NVML_ERROR_IN_USE;
	} else {
		sim_store(&gi.gi->used, 0);
		sim_caps_remove(gi.gpu, gi.id, SIM_NO_INSTANCE);
	}
	sim_mig_end(gi.gpu);
	return rc;
}

/* Who may configure MIG sees all instances, a container those whose nodes it was given. */
static int visible(const struct sim_gpu *gpu, unsigned int id)
{
	return sim_caps_config() || sim_caps_visible(gpu, id, SIM_NO_INSTANCE);
}

/* The caller's array has room for as many as the profile allows. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
	nvmlGpuInstance_t *instances, unsigned int *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(instances != NULL && count != NULL);
	if (!gpu->mig.capable || !sim_load(&gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	int profile = sim_profile_by_id(&gpu->mig, profile_id);
	SIM_REQUIRE(profile >= 0);
	unsigned int found = 0, most = gpu->mig.profiles[profile].instance_count;
	for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES && found < most; id++) {
		struct sim_gi gi;
		if (sim_gi_read(gpu, id, &gi) && gi.profile == &gpu->mig.profiles[profile] && visible(gpu, id))
			instances[found++] = sim_gi_handle(gpu, id);
	}
	*count = found;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
	struct sim_gi gi;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(instance != NULL);
	if (!gpu->mig.capable || !sim_load(&gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	if (id >= SIM_MAX_GPU_INSTANCES || !sim_gi_read(gpu, id, &gi))
		return NVML_ERROR_NOT_FOUND;
	if (!visible(gpu, id))
		return NVML_ERROR_NO_PERMISSION;
	*instance = sim_gi_handle(gpu, id);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(info != NULL);
	*info = (nvmlGpuInstanceInfo_t){
		.device = sim_handle(gi.gpu),
		.id = gi.id,
		.profileId = gi.profile->profile_id,
		.placement = {.start = gi.start, .size = gi.size},
	};
	return NVML_SUCCESS;
}

/*
 * Compute instances.
 */
#include "mig.h"

/* The slices that live compute instances take, as bits. */
unsigned int sim_ci_taken(const struct sim_gpu_instance *gi)
{
	unsigned int taken = 0;
	for (unsigned int id = 0; id < SIM_MAX_COMPUTE_INSTANCES; id++) {
		const struct sim_compute_instance *ci = &gi->compute_instances[id];
		if (sim_load(&ci->used))
			taken |= ((1u << sim_load(&ci->size)) - 1) << sim_load(&ci->start);
	}
	return taken;
}

/* Finds room for slices, at *start where that is fixed. */
static int find_room(const struct sim_gi *gi, unsigned int slices, int fixed, unsigned int *start)
{
	unsigned int taken = sim_ci_taken(gi->gi), step = sim_ci_step(slices);
	for (unsigned int at = 0; at + slices <= gi->profile->slice_count; at += step) {
		if ((fixed && at != *start) || (taken & ((1u << slices) - 1) << at) != 0)
			continue;
		*start = at;
		return 1;
	}
	return 0;
}

static int free_id(const struct sim_gpu_instance *gi)
{
	for (unsigned int id = 0; id < SIM_MAX_COMPUTE_INSTANCES; id++) {
		if (!sim_load(&gi->compute_instances[id].used))
			return (int)id;
	}
	return -1;
}

/* Between begin and end. */
static nvmlReturn_t make(const struct sim_gi *gi, unsigned int profile, const nvmlComputeInstancePlacement_t *placement,
	nvmlComputeInstance_t *out)
{
	unsigned int slices = sim_ci_slices(gi, profile), start = placement != NULL ? placement->start : 0;
	int id = free_id(gi->gi);
	if (id < 0 || !find_room(gi, slices, placement != NULL, &start))
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	if (sim_caps_add(gi->gpu, gi->id, (unsigned int)id) != 0) {
		sim_caps_remove(gi->gpu, gi->id, (unsigned int)id);
		return NVML_ERROR_OPERATING_SYSTEM;
	}
	struct sim_compute_instance *ci = &gi->gi->compute_instances[id];
	sim_store(&ci->profile, profile);
	sim_store(&ci->start, start);
	sim_store(&ci->size, slices);
	sim_store(&ci->compute_mode, NVML_COMPUTEMODE_DEFAULT);
	sim_store(&ci->epoch, __atomic_add_fetch(&gi->gpu->mig.epoch, 1, __ATOMIC_ACQ_REL));
	sim_store(&ci->used, 1);
	*out = sim_ci_handle(gi->gpu, gi->id, (unsigned int)id);
	return NVML_SUCCESS;
}

static nvmlReturn_t create(const struct sim_gi *gi, unsigned int profile, const nvmlComputeInstancePlacement_t *placement,
	nvmlComputeInstance_t *out)
{
	unsigned int slices = sim_ci_slices(gi, profile), epoch = sim_load(&gi->gi->epoch);
	if (slices == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	SIM_REQUIRE(placement == NULL || (placement->size == slices && placement->start % sim_ci_step(slices) == 0 &&
		placement->start < gi->profile->slice_count && placement->start + slices <= gi->profile->slice_count));
	nvmlReturn_t rc = sim_mig_begin(gi->gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	rc = NVML_ERROR_INVALID_ARGUMENT;
	if (sim_load(&gi->gi->used) && sim_load(&gi->gi->epoch) == epoch)
		rc = make(gi, profile, placement, out);
	sim_mig_end(gi->gpu);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
	nvmlComputeInstance_t *compute_instance)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(compute_instance != NULL);
	return create(&gi, profile, NULL, compute_instance);
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile,
	const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *compute_instance)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(placement != NULL && compute_instance != NULL);
	return create(&gi, profile, placement, compute_instance);
}

SIM_EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
	SIM_CI(instance, ci);
	unsigned int epoch = sim_load(&ci.ci->epoch);
	struct sim_gpu *gpu = ci.parent.gpu;
	nvmlReturn_t rc = sim_mig_begin(gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	if (!sim_load(&ci.ci->used) || sim_load(&ci.ci->epoch) != epoch) {
		rc = NVML_ERROR_INVALID_ARGUMENT;
	} else if (sim_mig_clients(gpu, ci.parent.id, ci.id)) {
		rc = NVML_ERROR_IN_USE;
	} else {
		sim_store(&ci.ci->used, 0);
		sim_caps_remove(gpu, ci.parent.id, ci.id);
	}
	sim_mig_end(gpu);
	return rc;
}

/* Who may configure MIG sees all instances, a container those whose nodes it was given. */
static int visible(const struct sim_gi *gi, unsigned int id)
{
	return sim_load(&gi->gi->compute_instances[id].used) && (sim_caps_config() || sim_caps_visible(gi->gpu, gi->id, id));
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
	nvmlComputeInstance_t *instances, unsigned int *count)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(instances != NULL && count != NULL);
	if (sim_ci_slices(&gi, profile) == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int found = 0;
	for (unsigned int id = 0; id < SIM_MAX_COMPUTE_INSTANCES; id++) {
		if (visible(&gi, id) && sim_load(&gi.gi->compute_instances[id].profile) == profile)
			instances[found++] = sim_ci_handle(gi.gpu, gi.id, id);
	}
	*count = found;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
	nvmlComputeInstance_t *compute_instance)
{
	SIM_GI(instance, gi);
	SIM_REQUIRE(compute_instance != NULL);
	if (id >= SIM_MAX_COMPUTE_INSTANCES || !sim_load(&gi.gi->compute_instances[id].used))
		return NVML_ERROR_NOT_FOUND;
	if (!visible(&gi, id))
		return NVML_ERROR_NO_PERMISSION;
	*compute_instance = sim_ci_handle(gi.gpu, gi.id, id);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
	SIM_CI(instance, ci);
	SIM_REQUIRE(info != NULL);
	*info = (nvmlComputeInstanceInfo_t){
		.device = sim_handle(ci.parent.gpu),
		.gpuInstance = sim_gi_handle(ci.parent.gpu, ci.parent.id),
		.id = ci.id,
		.profileId = sim_load(&ci.ci->profile),
		.placement = {.start = sim_load(&ci.ci->start), .size = sim_load(&ci.ci->size)},
	};
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2);

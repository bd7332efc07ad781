/*
 * Handles of MIG devices, GPU instances and compute instances.
 *
 * They lie in tables, so that a handle of any value can be checked without following it. A
 * handle is good for the instance it was given out for: one that is made anew under the
 * same id has another epoch.
 */
#include "mig.h"

struct nvmlGpuInstance_st {
	uint32_t epoch;
};

struct nvmlComputeInstance_st {
	uint32_t epoch;
};

#define GIS (SIM_MAX_GPUS * SIM_MAX_GPU_INSTANCES)
#define CIS (GIS * SIM_MAX_COMPUTE_INSTANCES)

static struct nvmlDevice_st mig_devices[CIS];
static struct nvmlGpuInstance_st gpu_instances[GIS];
static struct nvmlComputeInstance_st compute_instances[CIS];

/* The place of handle in a table of entries of size bytes, or -1. */
static long place(const void *handle, const void *table, size_t entry, size_t size)
{
	uintptr_t offset = (uintptr_t)handle - (uintptr_t)table;
	return offset < size && offset % entry == 0 ? (long)(offset / entry) : -1;
}

static unsigned int gi_place(const struct sim_gpu *gpu, unsigned int id)
{
	return sim_slot(gpu) * SIM_MAX_GPU_INSTANCES + id;
}

static unsigned int ci_place(const struct sim_gpu *gpu, unsigned int gi, unsigned int id)
{
	return gi_place(gpu, gi) * SIM_MAX_COMPUTE_INSTANCES + id;
}

nvmlDevice_t sim_mig_handle(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	struct nvmlDevice_st *handle = &mig_devices[ci_place(gpu, gi, ci)];
	sim_store(&handle->epoch, sim_load(&gpu->mig.instances[gi].compute_instances[ci].epoch));
	return (nvmlDevice_t){.handle = handle};
}

nvmlGpuInstance_t sim_gi_handle(const struct sim_gpu *gpu, unsigned int id)
{
	struct nvmlGpuInstance_st *handle = &gpu_instances[gi_place(gpu, id)];
	sim_store(&handle->epoch, sim_load(&gpu->mig.instances[id].epoch));
	return (nvmlGpuInstance_t){.handle = handle};
}

nvmlComputeInstance_t sim_ci_handle(const struct sim_gpu *gpu, unsigned int gi, unsigned int id)
{
	struct nvmlComputeInstance_st *handle = &compute_instances[ci_place(gpu, gi, id)];
	sim_store(&handle->epoch, sim_load(&gpu->mig.instances[gi].compute_instances[id].epoch));
	return (nvmlComputeInstance_t){.handle = handle};
}

/* Finds the instance behind a MIG device handle; answers whether it lives. */
int sim_mig_target(nvmlDevice_t device, struct sim_target *target)
{
	long at = place(device.handle, mig_devices, sizeof(mig_devices[0]), sizeof(mig_devices));
	if (at < 0)
		return 0;
	target->gpu = sim_session_gpu((unsigned int)at / SIM_MAX_COMPUTE_INSTANCES / SIM_MAX_GPU_INSTANCES);
	if (target->gpu == NULL)
		return 0;
	target->gi = &target->gpu->mig.instances[(unsigned int)at / SIM_MAX_COMPUTE_INSTANCES % SIM_MAX_GPU_INSTANCES];
	target->ci = &target->gi->compute_instances[(unsigned int)at % SIM_MAX_COMPUTE_INSTANCES];
	unsigned int epoch = sim_load(&mig_devices[at].epoch);
	return epoch != 0 && sim_load(&target->gi->used) && sim_load(&target->ci->used) && sim_load(&target->ci->epoch) == epoch;
}

/* Reads a GPU instance as of one moment; 0 if there is none. */
int sim_gi_read(struct sim_gpu *gpu, unsigned int id, struct sim_gi *out)
{
	struct sim_gpu_instance *gi = &gpu->mig.instances[id];
	unsigned int epoch;
	do {
		epoch = sim_load(&gi->epoch);
		unsigned int profile = sim_load(&gi->profile_index);
		if (!sim_load(&gi->used) || profile >= SIM_MAX_PROFILES)
			return 0;
		*out = (struct sim_gi){.gpu = gpu, .gi = gi, .id = id, .profile = &gpu->mig.profiles[profile],
			.start = sim_load(&gi->start), .size = sim_load(&gi->size)};
		/* Gone and made anew in between: read again. */
	} while (sim_load(&gi->epoch) != epoch);
	return 1;
}

static nvmlReturn_t enter_board(const char *function, unsigned int slot, struct sim_gpu **gpu)
{
	*gpu = sim_session_gpu(slot);
	if (*gpu == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t rc = sim_fault(function, (int)slot);
	if (rc == NVML_SUCCESS && (sim_load(&(*gpu)->lost) || sim_load(&(*gpu)->absent)))
		return NVML_ERROR_GPU_IS_LOST;
	return rc;
}

nvmlReturn_t sim_enter_gi(const char *function, nvmlGpuInstance_t handle, struct sim_gi *gi)
{
	struct sim_gpu *gpu = NULL;
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	long at = place(handle.handle, gpu_instances, sizeof(gpu_instances[0]), sizeof(gpu_instances));
	if (at < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t rc = enter_board(function, (unsigned int)at / SIM_MAX_GPU_INSTANCES, &gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	unsigned int epoch = sim_load(&gpu_instances[at].epoch);
	if (epoch == 0 || !sim_gi_read(gpu, (unsigned int)at % SIM_MAX_GPU_INSTANCES, gi) || sim_load(&gi->gi->epoch) != epoch)
		return NVML_ERROR_INVALID_ARGUMENT;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_enter_ci(const char *function, nvmlComputeInstance_t handle, struct sim_ci *ci)
{
	struct sim_gpu *gpu = NULL;
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	long at = place(handle.handle, compute_instances, sizeof(compute_instances[0]), sizeof(compute_instances));
	if (at < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int parent = (unsigned int)at / SIM_MAX_COMPUTE_INSTANCES;
	nvmlReturn_t rc = enter_board(function, parent / SIM_MAX_GPU_INSTANCES, &gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	unsigned int epoch = sim_load(&compute_instances[at].epoch);
	if (epoch == 0 || !sim_gi_read(gpu, parent % SIM_MAX_GPU_INSTANCES, &ci->parent))
		return NVML_ERROR_INVALID_ARGUMENT;
	ci->id = (unsigned int)at % SIM_MAX_COMPUTE_INSTANCES;
	ci->ci = &ci->parent.gi->compute_instances[ci->id];
	return sim_load(&ci->ci->used) && sim_load(&ci->ci->epoch) == epoch ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

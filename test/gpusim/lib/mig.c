/*
 * MIG mode, and MIG devices: a MIG device is a compute instance in its GPU instance.
 */
#include <strings.h>

#include "mig.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(current != NULL && pending != NULL);
	if (!gpu->mig.capable)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = sim_load(&gpu->mig.current_mode);
	*pending = sim_load(&gpu->mig.pending_mode);
	return NVML_SUCCESS;
}

/* The answer says whether the mode was accepted, the status whether it is in force. */
static nvmlReturn_t set_mode(struct sim_gpu *gpu, unsigned int mode, nvmlReturn_t *status)
{
	*status = NVML_SUCCESS;
	if (mode == NVML_DEVICE_MIG_DISABLE && sim_mig_has_instances(gpu))
		return NVML_ERROR_IN_USE;
	sim_store(&gpu->mig.pending_mode, mode);
	if (mode == sim_load(&gpu->mig.current_mode))
		return NVML_SUCCESS;
	if (gpu->mig.needs_reset)
		*status = NVML_ERROR_RESET_REQUIRED;
	else if (sim_mig_clients(gpu, SIM_NO_INSTANCE, SIM_NO_INSTANCE))
		*status = NVML_ERROR_IN_USE;
	else
		sim_store(&gpu->mig.current_mode, mode);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(status != NULL && (mode == NVML_DEVICE_MIG_DISABLE || mode == NVML_DEVICE_MIG_ENABLE));
	if (!gpu->mig.capable)
		return NVML_ERROR_NOT_SUPPORTED;
	nvmlReturn_t rc = sim_mig_begin(gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	rc = set_mode(gpu, mode, status);
	sim_mig_end(gpu);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL);
	*count = gpu->mig.capable && sim_load(&gpu->mig.current_mode) ? gpu->mig.max_instances : 0;
	return NVML_SUCCESS;
}

static int visible(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	const struct sim_gpu_instance *instance = &gpu->mig.instances[gi];
	return sim_load(&instance->used) && sim_load(&instance->compute_instances[ci].used) &&
		sim_caps_visible(gpu, gi, SIM_NO_INSTANCE) && sim_caps_visible(gpu, gi, ci);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mig != NULL);
	if (!gpu->mig.capable)
		return NVML_ERROR_NOT_SUPPORTED;
	SIM_REQUIRE(index < gpu->mig.max_instances);
	for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++) {
		for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
			if (!visible(gpu, gi, ci) || index-- > 0)
				continue;
			*mig = sim_mig_handle(gpu, gi, ci);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

/* The place of a MIG device among those of its board that this process sees. */
unsigned int sim_mig_index(const struct sim_target *target)
{
	unsigned int index = 0;
	for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++) {
		for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
			const struct sim_gpu_instance *at = &target->gpu->mig.instances[gi];
			if (at == target->gi && &at->compute_instances[ci] == target->ci)
				return index;
			index += (unsigned int)visible(target->gpu, gi, ci);
		}
	}
	return index;
}

/* Finds the MIG device of a UUID on any board of this session. */
nvmlReturn_t sim_mig_by_uuid(const char *function, const char *uuid, nvmlDevice_t *device)
{
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		struct sim_gpu *gpu = sim_visible(i);
		for (unsigned int gi = 0; gpu->mig.capable && gi < SIM_MAX_GPU_INSTANCES; gi++) {
			for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
				const char *own = gpu->mig.instances[gi].compute_instances[ci].uuid;
				if (*own == '\0' || strcasecmp(own, uuid) != 0 || !visible(gpu, gi, ci))
					continue;
				nvmlReturn_t rc = sim_enter_device(function, sim_handle(gpu), &gpu);
				if (rc == NVML_SUCCESS)
					*device = sim_mig_handle(gpu, gi, ci);
				return rc;
			}
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

/* Answered from the handle alone, so also for a lost board and an instance that is gone. */
SIM_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	struct sim_target target = {0};
	SIM_ENTER();
	SIM_REQUIRE(is_mig != NULL);
	if (sim_handle_gpu(device) == NULL) {
		sim_mig_target(device, &target);
		SIM_REQUIRE(target.gpu != NULL);
	}
	*is_mig = target.gpu != NULL;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	SIM_TARGET(mig, target);
	SIM_REQUIRE(device != NULL && target.gi != NULL);
	*device = sim_handle(target.gpu);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(id != NULL);
	if (target.gi == NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	*id = (unsigned int)(target.gi - target.gpu->mig.instances);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(id != NULL);
	if (target.ci == NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	*id = (unsigned int)(target.ci - target.gi->compute_instances);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(attributes != NULL);
	if (target.gi == NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	struct sim_gi gi;
	SIM_REQUIRE(sim_gi_read(target.gpu, (unsigned int)(target.gi - target.gpu->mig.instances), &gi));
	unsigned int slices = sim_load(&target.ci->size);
	*attributes = (nvmlDeviceAttributes_t){
		.multiprocessorCount = sim_ci_multiprocessors(&gi, slices),
		.sharedCopyEngineCount = gi.profile->copy_engines,
		.sharedDecoderCount = gi.profile->decoders,
		.sharedEncoderCount = gi.profile->encoders,
		.sharedJpegCount = gi.profile->jpeg,
		.sharedOfaCount = gi.profile->ofa,
		.gpuInstanceSliceCount = gi.profile->slice_count,
		.computeInstanceSliceCount = slices,
		.memorySizeMB = gi.profile->memory_mi_b,
	};
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2);

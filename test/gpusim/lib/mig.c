/*
 * MIG, as far as a board without instances needs it: what a caller asks before it
 * decides that a board is whole.
 */
#include "sim.h"

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

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL);
	*count = gpu->mig.capable && sim_load(&gpu->mig.current_mode) ? gpu->mig.max_instances : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mig != NULL && index < SIM_MAX_GPU_INSTANCES * SIM_MAX_COMPUTE_INSTANCES);
	if (!gpu->mig.capable)
		return NVML_ERROR_NOT_SUPPORTED;
	return NVML_ERROR_NOT_FOUND;
}

/* Answered from the handle alone, so also for a lost board. */
SIM_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	SIM_ENTER();
	SIM_REQUIRE(sim_handle_gpu(device) != NULL && is_mig != NULL);
	*is_mig = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	SIM_ENTER();
	SIM_REQUIRE(sim_handle_gpu(mig) != NULL && device != NULL);
	return NVML_ERROR_INVALID_ARGUMENT;
}

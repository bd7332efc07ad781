/*
 * The time slice of a board: how long one of several processes computes before the next.
 */
#include "private_table.h"

nvmlReturn_t sim_get_time_slice(nvmlDevice_t device, unsigned int *slice)
{
	struct sim_gpu *gpu = NULL;
	nvmlReturn_t rc = sim_enter_device("nvmlDeviceGetTimeSlice", device, &gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	SIM_SUPPORTED(gpu, SIM_FEATURE_TIME_SLICE);
	*slice = sim_load(&gpu->time_slice);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_set_time_slice(nvmlDevice_t device, unsigned int slice)
{
	struct sim_gpu *gpu = NULL;
	nvmlReturn_t rc = sim_enter_device("nvmlDeviceSetTimeSlice", device, &gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	SIM_SUPPORTED(gpu, SIM_FEATURE_TIME_SLICE);
	rc = sim_lock();
	if (rc != NVML_SUCCESS)
		return rc;
	sim_store(&gpu->time_slice, slice);
	sim_unlock();
	return NVML_SUCCESS;
}

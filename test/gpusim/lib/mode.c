/*
 * Modes of a board: what can be set, and what describes how it runs.
 */
#include "sim.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mode != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_PERSISTENCE);
	*mode = (nvmlEnableState_t)sim_load(&gpu->persistence_mode);
	return NVML_SUCCESS;
}

static nvmlReturn_t store(uint32_t *field, unsigned int value)
{
	nvmlReturn_t rc = sim_lock();
	if (rc != NVML_SUCCESS)
		return rc;
	__atomic_store_n(field, value, __ATOMIC_RELEASE);
	sim_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
	SIM_SUPPORTED(gpu, SIM_FEATURE_PERSISTENCE);
	return store(&gpu->persistence_mode, mode);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(mode != NULL);
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_COMPUTE_MODE);
	*mode = (nvmlComputeMode_t)sim_load(target.ci != NULL ? &target.ci->compute_mode : &target.gpu->compute_mode);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE((unsigned int)mode < NVML_COMPUTEMODE_COUNT);
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_COMPUTE_MODE);
	/* The mode that bound one thread to a board went with CUDA 8. */
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
		return NVML_ERROR_NOT_SUPPORTED;
	if (target.ci != NULL) {
		SIM_SUPPORTED(target.gpu, SIM_FEATURE_MIG_COMPUTE_MODE);
		return store(&target.ci->compute_mode, mode);
	}
	/* In MIG mode each instance has its own. */
	if (sim_load(&target.gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	return store(&target.gpu->compute_mode, mode);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(current != NULL && pending != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_ECC);
	*current = (nvmlEnableState_t)sim_load(&gpu->ecc_current);
	*pending = (nvmlEnableState_t)sim_load(&gpu->ecc_pending);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mode != NULL);
	if (mode->version != nvmlDeviceAddressingMode_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	SIM_SUPPORTED(gpu, SIM_FEATURE_ADDRESSING_MODE);
	mode->value = gpu->addressing_mode;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(mode != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_VIRTUALIZATION);
	*mode = (nvmlGpuVirtualizationMode_t)gpu->virtualization;
	return NVML_SUCCESS;
}

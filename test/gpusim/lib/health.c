/*
 * Counters, sensors and clients of a board.
 */
#include "client.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
	unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(correctable != NULL && uncorrectable != NULL && pending != NULL && failed != NULL);
	if (gpu->architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	*correctable = sim_load(&gpu->health.remapped_correctable);
	*uncorrectable = sim_load(&gpu->health.remapped_uncorrectable);
	*pending = sim_load(&gpu->health.remap_pending);
	*failed = sim_load(&gpu->health.remap_failed);
	return NVML_SUCCESS;
}

/* Page retirement was replaced by row remapping with Ampere. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(pending != NULL);
	if (gpu->architecture >= NVML_DEVICE_ARCH_AMPERE || sim_lacks(gpu, SIM_FEATURE_ECC))
		return NVML_ERROR_NOT_SUPPORTED;
	*pending = sim_load(&gpu->health.retired_pages_pending) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
	nvmlEccCounterType_t counter, unsigned long long *count)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL && (unsigned int)type < NVML_MEMORY_ERROR_TYPE_COUNT &&
		(unsigned int)counter < NVML_ECC_COUNTER_TYPE_COUNT);
	if (sim_lacks(gpu, SIM_FEATURE_ECC) || !sim_load(&gpu->ecc_current))
		return NVML_ERROR_NOT_SUPPORTED;
	int corrected = type == NVML_MEMORY_ERROR_TYPE_CORRECTED;
	if (counter == NVML_VOLATILE_ECC)
		*count = corrected ? gpu->health.ecc_corrected_volatile : gpu->health.ecc_uncorrected_volatile;
	else
		*count = corrected ? gpu->health.ecc_corrected_aggregate : gpu->health.ecc_uncorrected_aggregate;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(celsius != NULL && sensor == NVML_TEMPERATURE_GPU);
	SIM_SUPPORTED(gpu, SIM_FEATURE_TEMPERATURE);
	*celsius = (unsigned int)gpu->telemetry.temperature_c;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(temperature != NULL);
	if (temperature->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	SIM_REQUIRE(temperature->sensorType == NVML_TEMPERATURE_GPU);
	SIM_SUPPORTED(gpu, SIM_FEATURE_TEMPERATURE);
	temperature->temperature = gpu->telemetry.temperature_c;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatt)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(milliwatt != NULL);
	*milliwatt = gpu->telemetry.power_milliwatt;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatt)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(milliwatt != NULL);
	*milliwatt = gpu->telemetry.power_limit_mw;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(rates != NULL);
	/* Boards in MIG mode do not answer. */
	if (sim_load(&gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	rates->gpu = gpu->telemetry.gpu_utilization;
	rates->memory = gpu->telemetry.memory_utilization;
	return NVML_SUCCESS;
}

static unsigned int gi_of(const struct sim_target *target)
{
	return target->gi != NULL ? (unsigned int)(target->gi - target->gpu->mig.instances) : SIM_NO_INSTANCE;
}

/* A board in MIG mode answers for all its instances. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
	nvmlProcessInfo_t *infos)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(count != NULL && (*count == 0 || infos != NULL));
	struct sim_client clients[SIM_MAX_CLIENTS];
	unsigned int all = sim_clients(target.gpu, clients), room = *count, live = 0;
	unsigned int ci = target.ci != NULL ? (unsigned int)(target.ci - target.gi->compute_instances) : SIM_NO_INSTANCE;
	for (unsigned int i = 0; i < all; i++) {
		/* Processes outside of this container's process namespace have no number in it. */
		if (clients[i].pid == 0 || !sim_client_in(&clients[i], gi_of(&target), ci))
			continue;
		if (live < room)
			infos[live] = (nvmlProcessInfo_t){.pid = clients[i].pid, .usedGpuMemory = clients[i].mib << 20,
				.gpuInstanceId = clients[i].gi, .computeInstanceId = clients[i].ci};
		live++;
	}
	*count = live;
	return live > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

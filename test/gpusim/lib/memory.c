/*
 * Device memory.
 */
#include "sim.h"

static uint64_t used_memory(const struct sim_gpu *gpu)
{
	uint64_t available = gpu->memory_total - gpu->memory_reserved;
	uint64_t used = __atomic_load_n(&gpu->memory_used, __ATOMIC_ACQUIRE);
	return used < available ? used : available;
}

/* Version 1 counts the reserved part as used. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(memory != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_MEMORY);
	memory->total = gpu->memory_total;
	memory->used = gpu->memory_reserved + used_memory(gpu);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(memory != NULL);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	SIM_SUPPORTED(gpu, SIM_FEATURE_MEMORY);
	memory->total = gpu->memory_total;
	memory->reserved = gpu->memory_reserved;
	memory->used = used_memory(gpu);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(memory != NULL);
	if (gpu->bar1_total == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	memory->bar1Total = gpu->bar1_total;
	memory->bar1Used = 0;
	memory->bar1Free = gpu->bar1_total;
	return NVML_SUCCESS;
}

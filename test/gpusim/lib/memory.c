/*
 * Device memory.
 */
#include "client.h"

static uint64_t used_memory(const struct sim_gpu *gpu)
{
	uint64_t available = gpu->memory_total - gpu->memory_reserved;
	uint64_t used = __atomic_load_n(&gpu->memory_used, __ATOMIC_ACQUIRE) + sim_clients_memory(gpu, SIM_NO_INSTANCE);
	return used < available ? used : available;
}

nvmlMemory_v2_t sim_memory_of(const struct sim_target *target)
{
	const struct sim_gpu *gpu = target->gpu;
	if (target->gi == NULL)
		return (nvmlMemory_v2_t){.total = gpu->memory_total, .reserved = gpu->memory_reserved, .used = used_memory(gpu)};
	nvmlMemory_v2_t memory = {0};
	unsigned int id = (unsigned int)(target->gi - gpu->mig.instances), profile = sim_load(&target->gi->profile_index);
	if (profile < SIM_MAX_PROFILES)
		memory.total = gpu->mig.profiles[profile].memory_mi_b << 20;
	memory.used = sim_clients_memory(gpu, id);
	memory.used = memory.used < memory.total ? memory.used : memory.total;
	return memory;
}

/* Version 1 counts the reserved part as used. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(memory != NULL);
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_MEMORY);
	nvmlMemory_v2_t v2 = sim_memory_of(&target);
	memory->total = v2.total;
	memory->used = v2.reserved + v2.used;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(memory != NULL);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_MEMORY);
	nvmlMemory_v2_t now = sim_memory_of(&target);
	memory->total = now.total;
	memory->reserved = now.reserved;
	memory->used = now.used;
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

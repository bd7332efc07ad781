/*
 * Clients, memory and time slices of a board that nobody else uses.
 */
#include <string.h>
#include <unistd.h>

#include "exercise.h"
#include "private.h"

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

static void exercise_limits(const struct gpusim_functions *functions, nvmlDevice_t device)
{
	unsigned long long bytes = 0;
	nvmlSetMemoryLimits_v1_t set = {.nameSpace = "/tmp", .softLimit = 0, .hardLimit = 64ull << 20};
	nvmlGetMemoryLimits_v1_t get = {.nameSpace = "/tmp"};
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceSetMemoryLimits_v1(device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryLimits_v1(device, NULL));
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMemoryLimits_v1(device, &get));
	EXPECT(NVML_SUCCESS, nvmlDeviceSetMemoryLimits_v1(device, &set));
	EXPECT(NVML_SUCCESS, functions->limit(device, &bytes));
	EXPECT_NUMBER(64ull << 20, bytes);
	EXPECT(NVML_SUCCESS, functions->allocate(device, 64));
	EXPECT(NVML_ERROR_INSUFFICIENT_RESOURCES, functions->allocate(device, 1));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryLimits_v1(device, &get));
	EXPECT_NUMBER(64ull << 20, get.currentUsed);
	set.hardLimit = NVML_DEVICE_MEMORY_LIMIT_MAX;
	EXPECT(NVML_SUCCESS, nvmlDeviceSetMemoryLimits_v1(device, &set));
	EXPECT(NVML_ERROR_NOT_FOUND, functions->limit(device, &bytes));
	EXPECT(NVML_SUCCESS, functions->allocate(device, -64));
}

void exercise_clients(nvmlDevice_t device)
{
	const void *table = NULL;
	unsigned int slice = 0, kind = 0, count = 1;
	char path[16];
	nvmlProcessInfo_t info = {0};
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlInternalGetExportTable(&table, "another-table..."));
	EXPECT(NVML_SUCCESS, nvmlInternalGetExportTable(&table, GPUSIM_TABLE));
	const struct gpusim_functions *functions = table;
	EXPECT_NUMBER(sizeof(*functions), functions->size);
	EXPECT(NVML_ERROR_UNKNOWN, functions->nodes(path, 2));
	EXPECT(NVML_SUCCESS, functions->set_time_slice(device, 2));
	EXPECT(NVML_SUCCESS, functions->get_time_slice(device, &slice));
	EXPECT_NUMBER(2, slice);
	EXPECT(NVML_SUCCESS, functions->fault("exercise", NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, functions->allocate(device, 1));
	EXPECT(NVML_ERROR_IN_USE, functions->open(device, GPUSIM_CLIENT));
	EXPECT(NVML_SUCCESS, functions->open(device, GPUSIM_SERVER));
	EXPECT(NVML_ERROR_IN_USE, functions->open(device, GPUSIM_DIRECT));
	EXPECT(NVML_ERROR_IN_USE, functions->reset(device));
	EXPECT(NVML_SUCCESS, functions->kind(device, (unsigned int)getpid(), &kind));
	EXPECT_NUMBER(GPUSIM_SERVER, kind);
	EXPECT(NVML_ERROR_INSUFFICIENT_RESOURCES, functions->allocate(device, 1ll << 40));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, functions->allocate(device, -1));
	EXPECT(NVML_SUCCESS, functions->allocate(device, 100));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, &info));
	EXPECT_NUMBER((unsigned long long)getpid(), info.pid);
	EXPECT_NUMBER(100ull << 20, info.usedGpuMemory);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryInfo_v2(device, &memory));
	EXPECT_NUMBER(100ull << 20, memory.used);
	EXPECT(NVML_SUCCESS, functions->allocate(device, -100));
	exercise_limits(functions, device);
	EXPECT(NVML_SUCCESS, functions->close(device));
	EXPECT(NVML_SUCCESS, functions->close(device));
	count = 0;
	EXPECT(NVML_SUCCESS, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));
	EXPECT_NUMBER(0, count);
	EXPECT(NVML_SUCCESS, functions->reset(device));
	EXPECT(NVML_SUCCESS, functions->get_time_slice(device, &slice));
	EXPECT_NUMBER(0, slice);
}

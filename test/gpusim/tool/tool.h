/*
 * What all tools of the simulated driver need: the library, found at run time.
 */
#ifndef TOOL_H
#define TOOL_H

#include <nvml.h>
#include <stddef.h>

#include "private.h"

#define TOOL_MAX_GPUS 64u

/* What nvml.h does not declare. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

/* Every NVML function that a tool calls. */
#define TOOL_FUNCTIONS(X)                     \
	X(nvmlInit_v2)                       \
	X(nvmlShutdown)                      \
	X(nvmlErrorString)                   \
	X(nvmlSystemGetDriverVersion)        \
	X(nvmlSystemGetCudaDriverVersion_v2) \
	X(nvmlDeviceGetCount_v2)             \
	X(nvmlDeviceGetHandleByIndex_v2)     \
	X(nvmlDeviceGetHandleByUUID)         \
	X(nvmlDeviceGetHandleByPciBusId_v2)  \
	X(nvmlDeviceGetIndex)                \
	X(nvmlDeviceGetUUID)                 \
	X(nvmlDeviceGetName)                 \
	X(nvmlDeviceGetSerial)               \
	X(nvmlDeviceGetPciInfo_v3)           \
	X(nvmlDeviceGetMinorNumber)          \
	X(nvmlDeviceGetModuleId)             \
	X(nvmlDeviceGetVbiosVersion)         \
	X(nvmlDeviceGetMemoryInfo_v2)        \
	X(nvmlDeviceGetCudaComputeCapability) \
	X(nvmlDeviceGetMigMode)              \
	X(nvmlDeviceGetComputeMode)          \
	X(nvmlDeviceSetComputeMode)          \
	X(nvmlDeviceGetPersistenceMode)      \
	X(nvmlDeviceSetPersistenceMode)      \
	X(nvmlDeviceGetEccMode)              \
	X(nvmlDeviceGetTemperatureV)         \
	X(nvmlDeviceGetPowerUsage)           \
	X(nvmlDeviceGetEnforcedPowerLimit)   \
	X(nvmlDeviceGetUtilizationRates)     \
	X(nvmlDeviceGetGpuFabricInfoV)       \
	X(nvmlDeviceGetTopologyCommonAncestor) \
	X(nvmlDeviceGetP2PStatus)            \
	X(nvmlDeviceGetCpuAffinity)          \
	X(nvmlDeviceGetMemoryAffinity)       \
	X(nvmlDeviceGetNumaNodeId)           \
	X(nvmlDeviceGetNvLinkState)          \
	X(nvmlDeviceGetNvLinkRemoteDeviceType) \
	X(nvmlDeviceGetNvLinkRemotePciInfo_v2) \
	X(nvmlDeviceSetMigMode)              \
	X(nvmlDeviceGetMaxMigDeviceCount)    \
	X(nvmlDeviceGetMigDeviceHandleByIndex) \
	X(nvmlDeviceGetGpuInstanceProfileInfoV) \
	X(nvmlDeviceGetGpuInstancePossiblePlacements_v2) \
	X(nvmlDeviceGetGpuInstanceRemainingCapacity) \
	X(nvmlDeviceCreateGpuInstance)       \
	X(nvmlDeviceCreateGpuInstanceWithPlacement) \
	X(nvmlDeviceGetGpuInstances)         \
	X(nvmlGpuInstanceGetInfo)            \
	X(nvmlGpuInstanceDestroy)            \
	X(nvmlGpuInstanceGetComputeInstanceProfileInfoV) \
	X(nvmlGpuInstanceGetComputeInstanceRemainingCapacity) \
	X(nvmlGpuInstanceCreateComputeInstance) \
	X(nvmlGpuInstanceGetComputeInstances) \
	X(nvmlComputeInstanceGetInfo_v2)     \
	X(nvmlComputeInstanceDestroy)        \
	X(nvmlDeviceGetComputeRunningProcesses_v3) \
	X(nvmlDeviceGetGpuInstanceId)        \
	X(nvmlDeviceGetComputeInstanceId)    \
	X(nvmlInternalGetExportTable)

/* The loaded library: a pointer for each function, NULL where the driver is too old. */
struct tool_nvml {
#define X(name) __typeof__(name) *name;
	TOOL_FUNCTIONS(X)
#undef X
};

extern struct tool_nvml nvml;

/* Calls a function of the library; one that is missing answers FUNCTION_NOT_FOUND. */
#define NVML(name, ...) (nvml.name != NULL ? nvml.name(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

/* nvml.c: loads the library; 0, or -1 where there is none. */
int tool_load(void);
const char *tool_error(nvmlReturn_t rc);
/* What nvml.h does not say; NULL with a library that is not the simulator's. */
const struct gpusim_functions *tool_private(void);
/* Meets what was injected for a step of a tool, see gpusim's documentation. */
nvmlReturn_t tool_step(const char *step, const nvmlDevice_t *device);
/* The directory that holds this program, without its final slash; 0 on success. */
int tool_directory(char *path, size_t size);

#endif

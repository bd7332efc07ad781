/*
 * Internal interface of the simulated nvidia-smi: a small tool with the real one's
 * command line, that talks to whatever libnvidia-ml.so.1 the machine has.
 */
#ifndef SMI_H
#define SMI_H

#include <nvml.h>
#include <stddef.h>

#define SMI_MAX_GPUS 64u

/* What nvml.h does not declare. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

/* Exit codes beyond NVML's own numbers. */
#define SMI_USAGE 2
#define SMI_NO_DEVICES 6
#define SMI_NO_LIBRARY 12

/* Every NVML function that the tool calls. */
#define SMI_FUNCTIONS(X)                     \
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
	X(nvmlInternalGetExportTable)

/* The loaded library: a pointer for each function, NULL where the driver is too old. */
struct smi_nvml {
#define X(name) __typeof__(name) *name;
	SMI_FUNCTIONS(X)
#undef X
};

extern struct smi_nvml nvml;

/* Calls a function of the library; one that is missing answers FUNCTION_NOT_FOUND. */
#define NVML(name, ...) (nvml.name != NULL ? nvml.name(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

/* One board as the commands get it. */
struct smi_gpu {
	unsigned int index;
	nvmlDevice_t device;
	/* Not NVML_SUCCESS when there is no handle. */
	nvmlReturn_t status;
};

struct smi_gpus {
	unsigned int count;
	struct smi_gpu list[SMI_MAX_GPUS];
};

/* nvml.c: 0, or the exit code of the tool. */
int smi_load(void);
int smi_start(void);
const char *smi_error(nvmlReturn_t rc);

/* gpus.c: the boards that selector (-i) names, or all. */
int smi_select(const char *selector, struct smi_gpus *gpus);
int smi_report_lost(const struct smi_gpu *gpu);

/* The commands; each returns the exit code. */
int smi_list(const struct smi_gpus *gpus);
int smi_topo(const struct smi_gpus *gpus);
int smi_query(const struct smi_gpus *gpus, const char *fields, const char *format);
int smi_summary(const struct smi_gpus *gpus);
int smi_set_compute_mode(const struct smi_gpus *gpus, const char *mode);
int smi_set_persistence(const struct smi_gpus *gpus, const char *mode);
int smi_set_mig(const struct smi_gpus *gpus, const char *mode, int named);
int smi_reset(const struct smi_gpus *gpus);
int smi_mig(int argc, char **argv);
const char *smi_compute_mode_name(nvmlComputeMode_t mode);

#endif

/*
 * nvidia-smi -mig 0|1 and --gpu-reset
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

static const char *address(const struct smi_gpu *gpu, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof(*pci));
	NVML(nvmlDeviceGetPciInfo_v3, gpu->device, pci);
	return pci->busId;
}

static int set_mig(const struct smi_gpu *gpu, unsigned int mode)
{
	nvmlPciInfo_t pci;
	nvmlReturn_t status = NVML_SUCCESS;
	nvmlReturn_t rc = NVML(nvmlDeviceSetMigMode, gpu->device, mode, &status);
	const char *at = address(gpu, &pci);
	if (rc != NVML_SUCCESS) {
		printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", at, tool_error(rc));
		return (int)(rc < 256 ? rc : 255);
	}
	if (status != NVML_SUCCESS) {
		printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", at, tool_error(status));
		printf("End what uses the GPU, then nvidia-smi --gpu-reset, or reboot: MIG mode takes effect then.\n");
	} else {
		printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", at);
	}
	return 0;
}

/* A board without MIG is skipped unless it was asked for by name. */
int smi_set_mig(const struct smi_gpus *gpus, const char *text, int named)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) {
		printf("Invalid MIG mode \"%s\": must be 0 or 1.\n", text);
		return SMI_USAGE;
	}
	for (unsigned int i = 0; i < gpus->count; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		unsigned int current = 0, pending = 0;
		if (gpu->status != NVML_SUCCESS)
			return smi_report_lost(gpu);
		if (!named && NVML(nvmlDeviceGetMigMode, gpu->device, &current, &pending) == NVML_ERROR_NOT_SUPPORTED)
			continue;
		int rc = set_mig(gpu, text[0] == '1');
		if (rc != 0)
			return rc;
	}
	printf("All done.\n");
	return 0;
}

/* The library has no public function for it. */
static nvmlReturn_t reset(nvmlDevice_t device)
{
	const struct gpusim_functions *functions = tool_private();
	return functions != NULL ? functions->reset(device) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

int smi_reset(const struct smi_gpus *gpus)
{
	for (unsigned int i = 0; i < gpus->count; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		nvmlPciInfo_t pci;
		if (gpu->status != NVML_SUCCESS)
			return smi_report_lost(gpu);
		nvmlReturn_t rc = reset(gpu->device);
		if (rc != NVML_SUCCESS) {
			printf("GPU Reset couldn't run for GPU %s: %s\n", address(gpu, &pci), tool_error(rc));
			return (int)(rc < 256 ? rc : 255);
		}
		printf("GPU %s was successfully reset.\n", address(gpu, &pci));
	}
	printf("All done.\n");
	return 0;
}

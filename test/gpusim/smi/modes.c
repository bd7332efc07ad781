/*
 * nvidia-smi -c MODE and -pm MODE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "smi.h"

static const struct {
	nvmlComputeMode_t mode;
	const char *name;
} compute_modes[] = {
	{NVML_COMPUTEMODE_DEFAULT, "Default"},
	{NVML_COMPUTEMODE_EXCLUSIVE_THREAD, "Exclusive_Thread"},
	{NVML_COMPUTEMODE_PROHIBITED, "Prohibited"},
	{NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "Exclusive_Process"},
};

#define MODES (sizeof(compute_modes) / sizeof(compute_modes[0]))

const char *smi_compute_mode_name(nvmlComputeMode_t mode)
{
	for (size_t i = 0; i < MODES; i++) {
		if (compute_modes[i].mode == mode)
			return compute_modes[i].name;
	}
	return "Unknown";
}

/* A mode is its number or its name. */
static int parse_mode(const char *text, nvmlComputeMode_t *mode)
{
	for (size_t i = 0; i < MODES; i++) {
		if (strcasecmp(text, compute_modes[i].name) == 0 || (text[0] == (char)('0' + compute_modes[i].mode) && text[1] == '\0')) {
			*mode = compute_modes[i].mode;
			return 0;
		}
	}
	return -1;
}

/* A board is named by its address, a MIG device by its UUID. */
static const char *name_of(const struct smi_gpu *gpu, char *name, unsigned int size)
{
	nvmlPciInfo_t pci = {0};
	if (NVML(nvmlDeviceGetPciInfo_v3, gpu->device, &pci) == NVML_SUCCESS)
		snprintf(name, size, "%s", pci.busId);
	else if (NVML(nvmlDeviceGetUUID, gpu->device, name, size) != NVML_SUCCESS)
		snprintf(name, size, "%u", gpu->index);
	return name;
}

static int finish(const char *what, const struct smi_gpu *gpu, nvmlReturn_t rc, const char *value)
{
	char name[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	if (rc == NVML_SUCCESS) {
		printf("Set %s to %s for GPU %s.\n", what, value, name_of(gpu, name, sizeof(name)));
		return 0;
	}
	printf("Unable to set %s for GPU %s: %s\n", what, name_of(gpu, name, sizeof(name)), tool_error(rc));
	return (int)(rc < 256 ? rc : 255);
}

int smi_set_compute_mode(const struct smi_gpus *gpus, const char *text)
{
	nvmlComputeMode_t mode;
	if (parse_mode(text, &mode) != 0) {
		printf("Invalid compute mode \"%s\": must be 0 or DEFAULT, 2 or PROHIBITED, 3 or EXCLUSIVE_PROCESS.\n", text);
		return SMI_USAGE;
	}
	for (unsigned int i = 0; i < gpus->count; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		if (gpu->status != NVML_SUCCESS)
			return smi_report_lost(gpu);
		nvmlReturn_t result = NVML(nvmlDeviceSetComputeMode, gpu->device, mode);
		int rc = finish("compute mode", gpu, result, smi_compute_mode_name(mode));
		if (rc != 0)
			return rc;
	}
	printf("All done.\n");
	return 0;
}

int smi_set_persistence(const struct smi_gpus *gpus, const char *text)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) {
		printf("Invalid persistence mode \"%s\": must be 0 or 1.\n", text);
		return SMI_USAGE;
	}
	nvmlEnableState_t mode = text[0] == '1' ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	for (unsigned int i = 0; i < gpus->count; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		if (gpu->status != NVML_SUCCESS)
			return smi_report_lost(gpu);
		nvmlReturn_t result = NVML(nvmlDeviceSetPersistenceMode, gpu->device, mode);
		int rc = finish("persistence mode", gpu, result, mode ? "Enabled" : "Disabled");
		if (rc != 0)
			return rc;
	}
	printf("All done.\n");
	return 0;
}

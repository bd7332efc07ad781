/*
 * Which boards a command works on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

int smi_begin(void)
{
	if (tool_load() != 0) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"
			"Is the driver installed, and its library directory on the search path?\n");
		return SMI_NO_LIBRARY;
	}
	nvmlReturn_t rc = NVML(nvmlInit_v2);
	if (rc == NVML_SUCCESS)
		rc = tool_step("nvidia-smi", NULL);
	if (rc == NVML_SUCCESS)
		return 0;
	printf("Failed to initialize NVML: %s\n", tool_error(rc));
	if (rc == NVML_ERROR_DRIVER_NOT_LOADED)
		printf("NVIDIA-SMI couldn't communicate with the NVIDIA driver: is it installed and running, and is /dev/nvidiactl there?\n");
	return (int)(rc < 256 ? rc : 255);
}

static int select_all(struct smi_gpus *gpus)
{
	unsigned int count = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetCount_v2, &count);
	if (rc != NVML_SUCCESS) {
		printf("Failed to count the devices: %s\n", tool_error(rc));
		return (int)rc & 0xff;
	}
	if (count > SMI_MAX_GPUS)
		count = SMI_MAX_GPUS;
	for (unsigned int i = 0; i < count; i++) {
		gpus->list[i].index = i;
		gpus->list[i].status = NVML(nvmlDeviceGetHandleByIndex_v2, i, &gpus->list[i].device);
	}
	gpus->count = count;
	return 0;
}

/* A name is an index, a UUID or a PCI address. */
static nvmlReturn_t find(const char *name, struct smi_gpu *gpu)
{
	char *end = NULL;
	unsigned long index = strtoul(name, &end, 10);
	if (end != name && *end == '\0') {
		gpu->index = (unsigned int)index;
		return NVML(nvmlDeviceGetHandleByIndex_v2, gpu->index, &gpu->device);
	}
	nvmlReturn_t rc = strchr(name, ':') != NULL ? NVML(nvmlDeviceGetHandleByPciBusId_v2, name, &gpu->device)
						    : NVML(nvmlDeviceGetHandleByUUID, name, &gpu->device);
	if (rc == NVML_SUCCESS)
		rc = NVML(nvmlDeviceGetIndex, gpu->device, &gpu->index);
	return rc;
}

int smi_select(const char *selector, struct smi_gpus *gpus)
{
	gpus->count = 0;
	if (selector == NULL) {
		int rc = select_all(gpus);
		if (rc != 0)
			return rc;
	}
	while (selector != NULL && *selector != '\0' && gpus->count < SMI_MAX_GPUS) {
		char name[96];
		size_t length = strcspn(selector, ",");
		struct smi_gpu *gpu = &gpus->list[gpus->count];
		snprintf(name, sizeof(name), "%.*s", (int)length, selector);
		gpu->status = find(name, gpu);
		if (gpu->status == NVML_ERROR_INVALID_ARGUMENT || gpu->status == NVML_ERROR_NOT_FOUND) {
			gpus->count = 0;
			break;
		}
		gpus->count++;
		selector += length + (selector[length] == ',');
	}
	if (gpus->count > 0)
		return 0;
	printf("No devices were found\n");
	return SMI_NO_DEVICES;
}

int smi_report_lost(const struct smi_gpu *gpu)
{
	printf("Unable to determine the device handle for GPU%u: %s\n", gpu->index, tool_error(gpu->status));
	return (int)(gpu->status < 256 ? gpu->status : 255);
}

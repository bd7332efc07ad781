/*
 * nvidia-smi -L
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

/* The part of a MIG device's name that tells it from its board's: "MIG 1g.10gb". */
static const char *profile_of(const char *name)
{
	const char *last = name;
	for (const char *at = strstr(name, "MIG "); at != NULL; at = strstr(at + 1, "MIG "))
		last = at;
	return last;
}

static void list_mig_devices(nvmlDevice_t device)
{
	unsigned int count = 0;
	if (NVML(nvmlDeviceGetMaxMigDeviceCount, device, &count) != NVML_SUCCESS)
		return;
	for (unsigned int i = 0; i < count; i++) {
		nvmlDevice_t mig;
		char name[2 * NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "MIG", uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "Unknown";
		if (NVML(nvmlDeviceGetMigDeviceHandleByIndex, device, i, &mig) != NVML_SUCCESS)
			continue;
		NVML(nvmlDeviceGetName, mig, name, sizeof(name));
		NVML(nvmlDeviceGetUUID, mig, uuid, sizeof(uuid));
		printf("  %-15s Device %2u: (UUID: %s)\n", profile_of(name), i, uuid);
	}
}

int smi_list(const struct smi_gpus *gpus)
{
	int worst = 0;
	for (unsigned int i = 0; i < gpus->count; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "Unknown", uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "Unknown";
		if (gpu->status != NVML_SUCCESS) {
			worst = smi_report_lost(gpu);
			continue;
		}
		NVML(nvmlDeviceGetName, gpu->device, name, sizeof(name));
		NVML(nvmlDeviceGetUUID, gpu->device, uuid, sizeof(uuid));
		printf("GPU %u: %s (UUID: %s)\n", gpu->index, name, uuid);
		list_mig_devices(gpu->device);
	}
	return worst;
}

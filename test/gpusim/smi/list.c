/*
 * nvidia-smi -L
 */
#include <stdio.h>

#include "smi.h"

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
	}
	return worst;
}

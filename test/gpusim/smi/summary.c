/*
 * nvidia-smi without arguments
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define LINE "+-----------------------------------------+------------------------+----------------------+\n"
#define TOP "+-----------------------------------------------------------------------------------------+\n"

static void print_head(void)
{
	char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "N/A";
	int cuda = 0;
	NVML(nvmlSystemGetDriverVersion, driver, sizeof(driver));
	NVML(nvmlSystemGetCudaDriverVersion_v2, &cuda);
	printf(TOP);
	printf("| NVIDIA-SMI %-13s Driver Version: %-24s CUDA Version: %2d.%-4d |\n", "(simulated)", driver, cuda / 1000, cuda % 1000 / 10);
	printf(LINE);
	printf("| GPU  Name                 Persistence-M | Bus-Id                 | Compute M.    MIG M. |\n");
	printf("|      Temp   Pwr:Usage/Cap               |           Memory-Usage |             GPU-Util |\n");
	printf(LINE);
}

static void print_gpu(const struct smi_gpu *gpu)
{
	char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "N/A";
	nvmlPciInfo_t pci = {0};
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlEnableState_t persistence = NVML_FEATURE_DISABLED;
	nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
	nvmlTemperature_t temperature = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
	nvmlUtilization_t use = {0};
	unsigned int current = 0, pending = 0, power = 0, limit = 0;
	char used[48] = "N/A";
	NVML(nvmlDeviceGetName, gpu->device, name, sizeof(name));
	NVML(nvmlDeviceGetPciInfo_v3, gpu->device, &pci);
	NVML(nvmlDeviceGetPersistenceMode, gpu->device, &persistence);
	NVML(nvmlDeviceGetComputeMode, gpu->device, &mode);
	NVML(nvmlDeviceGetTemperatureV, gpu->device, &temperature);
	NVML(nvmlDeviceGetUtilizationRates, gpu->device, &use);
	NVML(nvmlDeviceGetPowerUsage, gpu->device, &power);
	NVML(nvmlDeviceGetEnforcedPowerLimit, gpu->device, &limit);
	const char *mig = "N/A";
	if (NVML(nvmlDeviceGetMigMode, gpu->device, &current, &pending) == NVML_SUCCESS)
		mig = current ? "Enabled" : "Disabled";
	if (NVML(nvmlDeviceGetMemoryInfo_v2, gpu->device, &memory) == NVML_SUCCESS)
		snprintf(used, sizeof(used), "%lluMiB / %lluMiB", memory.used >> 20, memory.total >> 20);
	printf("| %3u  %-28.28s %5s | %-22s | %-11.11s %8s |\n", gpu->index, name, persistence ? "On" : "Off", pci.busId,
		smi_compute_mode_name(mode), mig);
	printf("|      %3dC   %5uW / %5uW             | %22s | %19u%% |\n", temperature.temperature, power / 1000, limit / 1000, used, use.gpu);
	printf(LINE);
}

static void print_processes(const struct smi_gpus *gpus)
{
	static const char kinds[][4] = {"C", "C", "C", "M+C"};
	const struct gpusim_functions *functions = tool_private();
	unsigned int listed = 0;
	printf("\n" TOP "| Processes:                                                                              |\n"
		"|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n" TOP);
	for (unsigned int i = 0; i < gpus->count; i++) {
		static nvmlProcessInfo_t infos[SMI_MAX_PROCESSES];
		unsigned int live = SMI_MAX_PROCESSES;
		if (gpus->list[i].status != NVML_SUCCESS || smi_processes(&gpus->list[i], infos, &live) != NVML_SUCCESS)
			continue;
		for (unsigned int p = 0; p < live; p++) {
			listed++;
			char name[256], gi[12] = "N/A", ci[12] = "N/A";
			unsigned int kind = 0;
			smi_process_name(infos[p].pid, name, sizeof(name));
			if (infos[p].gpuInstanceId != 0xffffffffu) {
				snprintf(gi, sizeof(gi), "%u", infos[p].gpuInstanceId);
				snprintf(ci, sizeof(ci), "%u", infos[p].computeInstanceId);
			}
			if (functions != NULL)
				functions->kind(gpus->list[i].device, infos[p].pid, &kind);
			printf("| %4u  %3s  %3s  %15u  %5s   %-33.33s %9lluMiB |\n", gpus->list[i].index, gi, ci, infos[p].pid,
				kinds[kind < 4 ? kind : 0], name, infos[p].usedGpuMemory >> 20);
		}
	}
	if (listed == 0)
		printf("|  No running processes found                                                             |\n");
	printf(TOP);
}

int smi_summary(const struct smi_gpus *gpus)
{
	int worst = 0;
	print_head();
	for (unsigned int i = 0; i < gpus->count; i++) {
		if (gpus->list[i].status != NVML_SUCCESS)
			worst = smi_report_lost(&gpus->list[i]);
		else
			print_gpu(&gpus->list[i]);
	}
	print_processes(gpus);
	return worst;
}

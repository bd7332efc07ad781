/*
 * nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define MAX_FIELDS 16u

/* One process on one device. */
struct app {
	const struct smi_gpu *gpu;
	nvmlDevice_t device;
	nvmlProcessInfo_t info;
};

static void put_uuid(const struct app *app, char *out, size_t size)
{
	if (NVML(nvmlDeviceGetUUID, app->device, out, (unsigned int)size) != NVML_SUCCESS)
		snprintf(out, size, "[N/A]");
}

static void put_index(const struct app *app, char *out, size_t size)
{
	snprintf(out, size, "%u", app->gpu->index);
}

static void put_pid(const struct app *app, char *out, size_t size)
{
	snprintf(out, size, "%u", app->info.pid);
}

static void put_name(const struct app *app, char *out, size_t size)
{
	smi_process_name(app->info.pid, out, size);
}

static void put_memory(const struct app *app, char *out, size_t size)
{
	snprintf(out, size, "%llu", app->info.usedGpuMemory >> 20);
}

static const struct field {
	const char *name;
	const char *unit;
	void (*put)(const struct app *app, char *out, size_t size);
} fields[] = {
	{"gpu_uuid", NULL, put_uuid},
	{"gpu_index", NULL, put_index},
	{"pid", NULL, put_pid},
	{"process_name", NULL, put_name},
	{"name", NULL, put_name},
	{"used_gpu_memory", "MiB", put_memory},
	{"used_memory", "MiB", put_memory},
};

static const struct field *find(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (strlen(fields[i].name) == length && strncmp(fields[i].name, name, length) == 0)
			return &fields[i];
	}
	return NULL;
}

void smi_process_name(unsigned int pid, char *out, size_t size)
{
	char path[64];
	snprintf(out, size, "[Not Found]");
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return;
	/* The arguments are apart by zero bytes: what is printed is the first. */
	size_t length = fread(out, 1, size - 1, file);
	if (length > 0)
		out[length] = '\0';
	fclose(file);
}

static void print_app(const struct app *app, const struct field *const *chosen, size_t count, int units)
{
	char value[PATH_MAX];
	for (size_t i = 0; i < count; i++) {
		chosen[i]->put(app, value, sizeof(value));
		printf("%s%s", i > 0 ? ", " : "", value);
		if (units && chosen[i]->unit != NULL)
			printf(" %s", chosen[i]->unit);
	}
	printf("\n");
}

/* The MIG device of an instance; the board where this process does not see it. */
static nvmlDevice_t device_of(const struct smi_gpu *gpu, const nvmlProcessInfo_t *info)
{
	unsigned int count = 0;
	if (info->gpuInstanceId == 0xffffffffu || NVML(nvmlDeviceGetMaxMigDeviceCount, gpu->device, &count) != NVML_SUCCESS)
		return gpu->device;
	for (unsigned int i = 0; i < count; i++) {
		nvmlDevice_t mig;
		unsigned int gi = 0, ci = 0;
		if (NVML(nvmlDeviceGetMigDeviceHandleByIndex, gpu->device, i, &mig) == NVML_SUCCESS &&
			NVML(nvmlDeviceGetGpuInstanceId, mig, &gi) == NVML_SUCCESS && NVML(nvmlDeviceGetComputeInstanceId, mig, &ci) == NVML_SUCCESS &&
			gi == info->gpuInstanceId && ci == info->computeInstanceId)
			return mig;
	}
	return gpu->device;
}

nvmlReturn_t smi_processes(const struct smi_gpu *gpu, nvmlProcessInfo_t *infos, unsigned int *count)
{
	return NVML(nvmlDeviceGetComputeRunningProcesses_v3, gpu->device, count, infos);
}

static size_t choose(const char *text, const struct field **chosen)
{
	size_t count = 0;
	while (*text != '\0') {
		size_t length = strcspn(text, ",");
		const struct field *field = find(text, length);
		if (field == NULL || count == MAX_FIELDS) {
			printf("Field \"%.*s\" is not a valid field to query.\n", (int)length, text);
			return 0;
		}
		chosen[count++] = field;
		text += length + (text[length] == ',');
	}
	return count;
}

static void print_header(const struct field *const *chosen, size_t count, int units)
{
	for (size_t i = 0; i < count; i++) {
		printf("%s%s", i > 0 ? ", " : "", chosen[i]->name);
		if (units && chosen[i]->unit != NULL)
			printf(" [%s]", chosen[i]->unit);
	}
	printf("\n");
}

int smi_query_processes(const struct smi_gpus *gpus, const char *text, const char *format)
{
	const struct field *chosen[MAX_FIELDS];
	size_t count = choose(text, chosen);
	if (count == 0)
		return SMI_USAGE;
	if (format == NULL || strncmp(format, "csv", 3) != 0) {
		printf("\"--format=\" must be csv, csv,noheader or csv,noheader,nounits.\n");
		return SMI_USAGE;
	}
	int units = strstr(format, "nounits") == NULL;
	if (strstr(format, "noheader") == NULL)
		print_header(chosen, count, units);
	for (unsigned int i = 0; i < gpus->count; i++) {
		static nvmlProcessInfo_t infos[SMI_MAX_PROCESSES];
		unsigned int live = SMI_MAX_PROCESSES;
		if (gpus->list[i].status != NVML_SUCCESS)
			return smi_report_lost(&gpus->list[i]);
		if (smi_processes(&gpus->list[i], infos, &live) != NVML_SUCCESS)
			continue;
		for (unsigned int p = 0; p < live; p++) {
			struct app app = {.gpu = &gpus->list[i], .device = device_of(&gpus->list[i], &infos[p]), .info = infos[p]};
			print_app(&app, chosen, count, units);
		}
	}
	return 0;
}

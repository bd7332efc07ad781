/*
 * nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define MAX_FIELDS 64u
#define VALUE_SIZE 128u
#define MIB (1024ull * 1024ull)

/* Reads one field as text without its unit. */
typedef nvmlReturn_t reader(const struct smi_gpu *gpu, char *out, size_t size);

static nvmlReturn_t put(char *out, size_t size, nvmlReturn_t rc, unsigned long long value)
{
	snprintf(out, size, "%llu", value);
	return rc;
}

static nvmlReturn_t put_text(char *out, size_t size, nvmlReturn_t rc, const char *text)
{
	snprintf(out, size, "%s", text);
	return rc;
}

static nvmlReturn_t read_index(const struct smi_gpu *gpu, char *out, size_t size)
{
	return put(out, size, NVML_SUCCESS, gpu->index);
}

static nvmlReturn_t read_count(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int count = 0;
	(void)gpu;
	nvmlReturn_t rc = NVML(nvmlDeviceGetCount_v2, &count);
	return put(out, size, rc, count);
}

static nvmlReturn_t read_uuid(const struct smi_gpu *gpu, char *out, size_t size)
{
	return NVML(nvmlDeviceGetUUID, gpu->device, out, (unsigned int)size);
}

static nvmlReturn_t read_name(const struct smi_gpu *gpu, char *out, size_t size)
{
	return NVML(nvmlDeviceGetName, gpu->device, out, (unsigned int)size);
}

static nvmlReturn_t read_serial(const struct smi_gpu *gpu, char *out, size_t size)
{
	return NVML(nvmlDeviceGetSerial, gpu->device, out, (unsigned int)size);
}

static nvmlReturn_t read_vbios(const struct smi_gpu *gpu, char *out, size_t size)
{
	return NVML(nvmlDeviceGetVbiosVersion, gpu->device, out, (unsigned int)size);
}

static nvmlReturn_t read_driver(const struct smi_gpu *gpu, char *out, size_t size)
{
	(void)gpu;
	return NVML(nvmlSystemGetDriverVersion, out, (unsigned int)size);
}

static nvmlReturn_t read_bus_id(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlPciInfo_t pci = {0};
	nvmlReturn_t rc = NVML(nvmlDeviceGetPciInfo_v3, gpu->device, &pci);
	return put_text(out, size, rc, pci.busId);
}

static nvmlReturn_t read_device_id(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlPciInfo_t pci = {0};
	nvmlReturn_t rc = NVML(nvmlDeviceGetPciInfo_v3, gpu->device, &pci);
	snprintf(out, size, "0x%08X", pci.pciDeviceId);
	return rc;
}

static nvmlReturn_t memory(const struct smi_gpu *gpu, nvmlMemory_v2_t *info)
{
	memset(info, 0, sizeof(*info));
	info->version = nvmlMemory_v2;
	return NVML(nvmlDeviceGetMemoryInfo_v2, gpu->device, info);
}

static nvmlReturn_t read_total(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t rc = memory(gpu, &info);
	return put(out, size, rc, info.total / MIB);
}

static nvmlReturn_t read_reserved(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t rc = memory(gpu, &info);
	return put(out, size, rc, info.reserved / MIB);
}

static nvmlReturn_t read_used(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t rc = memory(gpu, &info);
	return put(out, size, rc, info.used / MIB);
}

static nvmlReturn_t read_free(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t rc = memory(gpu, &info);
	return put(out, size, rc, info.free / MIB);
}

static nvmlReturn_t read_capability(const struct smi_gpu *gpu, char *out, size_t size)
{
	int major = 0, minor = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetCudaComputeCapability, gpu->device, &major, &minor);
	snprintf(out, size, "%d.%d", major, minor);
	return rc;
}

static const char *enabled(unsigned int value)
{
	return value ? "Enabled" : "Disabled";
}

static nvmlReturn_t read_mig_current(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int current = 0, pending = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetMigMode, gpu->device, &current, &pending);
	return put_text(out, size, rc, enabled(current));
}

static nvmlReturn_t read_mig_pending(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int current = 0, pending = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetMigMode, gpu->device, &current, &pending);
	return put_text(out, size, rc, enabled(pending));
}

static nvmlReturn_t read_compute_mode(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
	nvmlReturn_t rc = NVML(nvmlDeviceGetComputeMode, gpu->device, &mode);
	return put_text(out, size, rc, smi_compute_mode_name(mode));
}

static nvmlReturn_t read_persistence(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlEnableState_t mode = NVML_FEATURE_DISABLED;
	nvmlReturn_t rc = NVML(nvmlDeviceGetPersistenceMode, gpu->device, &mode);
	return put_text(out, size, rc, enabled(mode));
}

static nvmlReturn_t read_ecc(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlEnableState_t current = NVML_FEATURE_DISABLED, pending = NVML_FEATURE_DISABLED;
	nvmlReturn_t rc = NVML(nvmlDeviceGetEccMode, gpu->device, &current, &pending);
	return put_text(out, size, rc, enabled(current));
}

static nvmlReturn_t read_temperature(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlTemperature_t t = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
	nvmlReturn_t rc = NVML(nvmlDeviceGetTemperatureV, gpu->device, &t);
	snprintf(out, size, "%d", t.temperature);
	return rc;
}

static nvmlReturn_t read_power(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int milliwatt = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetPowerUsage, gpu->device, &milliwatt);
	snprintf(out, size, "%u.%02u", milliwatt / 1000, milliwatt % 1000 / 10);
	return rc;
}

static nvmlReturn_t read_limit(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int milliwatt = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetEnforcedPowerLimit, gpu->device, &milliwatt);
	snprintf(out, size, "%u.%02u", milliwatt / 1000, milliwatt % 1000 / 10);
	return rc;
}

static nvmlReturn_t read_gpu_use(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlUtilization_t rates = {0};
	nvmlReturn_t rc = NVML(nvmlDeviceGetUtilizationRates, gpu->device, &rates);
	return put(out, size, rc, rates.gpu);
}

static nvmlReturn_t read_memory_use(const struct smi_gpu *gpu, char *out, size_t size)
{
	nvmlUtilization_t rates = {0};
	nvmlReturn_t rc = NVML(nvmlDeviceGetUtilizationRates, gpu->device, &rates);
	return put(out, size, rc, rates.memory);
}

static nvmlReturn_t read_module(const struct smi_gpu *gpu, char *out, size_t size)
{
	unsigned int module = 0;
	nvmlReturn_t rc = NVML(nvmlDeviceGetModuleId, gpu->device, &module);
	return put(out, size, rc, module);
}

static nvmlReturn_t read_fabric(const struct smi_gpu *gpu, char *out, size_t size)
{
	static const char *const names[] = {"N/A", "Not Started", "In Progress", "Completed"};
	nvmlGpuFabricInfoV_t info;
	memset(&info, 0, sizeof(info));
	info.version = nvmlGpuFabricInfo_v3;
	nvmlReturn_t rc = NVML(nvmlDeviceGetGpuFabricInfoV, gpu->device, &info);
	return put_text(out, size, rc, names[info.state & 3]);
}

static const struct field {
	const char *name;
	const char *unit;
	reader *read;
	/* Known without a handle. */
	int always;
} fields_known[] = {
	{"index", NULL, read_index, 1},
	{"count", NULL, read_count, 1},
	{"driver_version", NULL, read_driver, 1},
	{"uuid", NULL, read_uuid, 0},
	{"gpu_uuid", NULL, read_uuid, 0},
	{"name", NULL, read_name, 0},
	{"gpu_name", NULL, read_name, 0},
	{"serial", NULL, read_serial, 0},
	{"gpu_serial", NULL, read_serial, 0},
	{"vbios_version", NULL, read_vbios, 0},
	{"pci.bus_id", NULL, read_bus_id, 0},
	{"gpu_bus_id", NULL, read_bus_id, 0},
	{"pci.device_id", NULL, read_device_id, 0},
	{"memory.total", "MiB", read_total, 0},
	{"memory.reserved", "MiB", read_reserved, 0},
	{"memory.used", "MiB", read_used, 0},
	{"memory.free", "MiB", read_free, 0},
	{"compute_cap", NULL, read_capability, 0},
	{"mig.mode.current", NULL, read_mig_current, 0},
	{"mig.mode.pending", NULL, read_mig_pending, 0},
	{"compute_mode", NULL, read_compute_mode, 0},
	{"persistence_mode", NULL, read_persistence, 0},
	{"ecc.mode.current", NULL, read_ecc, 0},
	{"temperature.gpu", NULL, read_temperature, 0},
	{"power.draw", "W", read_power, 0},
	{"power.limit", "W", read_limit, 0},
	{"utilization.gpu", "%", read_gpu_use, 0},
	{"utilization.memory", "%", read_memory_use, 0},
	{"gpu_module_id", NULL, read_module, 0},
	{"fabric.state", NULL, read_fabric, 0},
};

static const struct field *find_field(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof(fields_known) / sizeof(fields_known[0]); i++) {
		if (strlen(fields_known[i].name) == length && strncmp(fields_known[i].name, name, length) == 0)
			return &fields_known[i];
	}
	return NULL;
}

/* Splits the list; -1 on an unknown field. */
static int parse_fields(const char *list, const struct field **out)
{
	int count = 0;
	while (*list != '\0' && count < (int)MAX_FIELDS) {
		list += strspn(list, " ");
		size_t length = strcspn(list, ",");
		out[count] = find_field(list, length);
		if (out[count] == NULL) {
			printf("Field \"%.*s\" is not a valid field to query.\n", (int)length, list);
			return -1;
		}
		count++;
		list += length + (list[length] == ',');
	}
	return count;
}

static void print_value(const struct smi_gpu *gpu, const struct field *field, int units)
{
	char value[VALUE_SIZE] = "";
	nvmlReturn_t rc = gpu->status;
	if (field->always || rc == NVML_SUCCESS)
		rc = field->read(gpu, value, sizeof(value));
	if (rc == NVML_SUCCESS)
		printf("%s%s%s", value, units && field->unit ? " " : "", units && field->unit ? field->unit : "");
	else if (rc == NVML_ERROR_NOT_SUPPORTED || rc == NVML_ERROR_FUNCTION_NOT_FOUND)
		printf("[N/A]");
	else
		printf("[%s]", tool_error(rc));
}

int smi_query(const struct smi_gpus *gpus, const char *list, const char *format)
{
	const struct field *fields[MAX_FIELDS];
	if (format == NULL || strncmp(format, "csv", 3) != 0) {
		printf("\"--format=\" must be csv, csv,noheader or csv,noheader,nounits.\n");
		return SMI_USAGE;
	}
	int units = strstr(format, "nounits") == NULL;
	int count = parse_fields(list, fields);
	if (count <= 0)
		return SMI_USAGE;
	if (strstr(format, "noheader") == NULL) {
		for (int f = 0; f < count; f++) {
			printf("%s%s", f > 0 ? ", " : "", fields[f]->name);
			if (units && fields[f]->unit != NULL)
				printf(" [%s]", fields[f]->unit);
		}
		printf("\n");
	}
	int worst = 0;
	for (unsigned int i = 0; i < gpus->count; i++) {
		for (int f = 0; f < count; f++) {
			printf("%s", f > 0 ? ", " : "");
			print_value(&gpus->list[i], fields[f], units);
		}
		printf("\n");
		if (gpus->list[i].status != NVML_SUCCESS)
			worst = (int)(gpus->list[i].status & 0xff);
	}
	return worst;
}

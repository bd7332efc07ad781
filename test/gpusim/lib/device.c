/*
 * Handles of boards and what identifies a board.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "mig.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	SIM_ENTER();
	SIM_REQUIRE(count != NULL);
	*count = sim_visible_count();
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

/* Gives out the handle of gpu unless a fault on function or a lost board forbids it. */
static nvmlReturn_t give_handle(const char *function, struct sim_gpu *gpu, nvmlDevice_t *device)
{
	nvmlReturn_t rc = sim_enter_device(function, sim_handle(gpu), &gpu);
	if (rc == NVML_SUCCESS)
		*device = sim_handle(gpu);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	SIM_REQUIRE(device != NULL && index < sim_visible_count());
	return give_handle(__func__, sim_visible(index), device);
}
SIM_ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

static nvmlReturn_t by_uuid(const char *function, const char *uuid, nvmlDevice_t *device)
{
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		if (strcasecmp(sim_visible(i)->uuid, uuid) == 0)
			return give_handle(function, sim_visible(i), device);
	}
	return sim_mig_by_uuid(function, uuid, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	SIM_REQUIRE(uuid != NULL && device != NULL);
	return by_uuid(__func__, uuid, device);
}

static void print_uuid(char *text, size_t size, const char *kind, const unsigned char *b)
{
	snprintf(text, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", kind,
		b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	SIM_REQUIRE(uuid != NULL && device != NULL);
	if (uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	char text[64];
	switch (uuid->type) {
	case NVML_UUID_TYPE_ASCII:
		snprintf(text, sizeof(text), "%.*s", NVML_DEVICE_UUID_ASCII_LEN, uuid->value.str);
		break;
	case NVML_UUID_TYPE_BINARY:
		/* The version nibble tells the two kinds apart. */
		print_uuid(text, sizeof(text), uuid->value.bytes[6] >> 4 == 5 ? "MIG" : "GPU", uuid->value.bytes);
		break;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return by_uuid(__func__, text, device);
}

/* Reads domain:bus:device[.function] or bus:device[.function], all in hexadecimal. */
static int parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *device)
{
	unsigned int function = 0;
	char rest = 0;
	int n = sscanf(text, "%x:%x:%x.%x%c", domain, bus, device, &function, &rest);
	if (n == 3 || n == 4)
		return function == 0;
	*domain = 0;
	n = sscanf(text, "%x:%x.%x%c", bus, device, &function, &rest);
	return (n == 2 || n == 3) && function == 0;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	unsigned int domain, bus, number;
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	SIM_REQUIRE(bus_id != NULL && device != NULL && parse_bus_id(bus_id, &domain, &bus, &number));
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		struct sim_gpu *gpu = sim_visible(i);
		if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == number)
			return give_handle(__func__, gpu, device);
	}
	return NVML_ERROR_NOT_FOUND;
}
SIM_ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	SIM_REQUIRE(serial != NULL && *serial != '\0' && device != NULL);
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		if (strcmp(sim_visible(i)->serial, serial) == 0)
			return give_handle(__func__, sim_visible(i), device);
	}
	return NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	SIM_TARGET(device, target);
	SIM_REQUIRE(index != NULL);
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		if (sim_visible(i) == target.gpu)
			*index = i;
	}
	if (target.ci != NULL)
		*index = sim_mig_index(&target);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	SIM_TARGET(device, target);
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_UUID);
	return sim_copy_text(uuid, length, target.ci != NULL ? target.ci->uuid : target.gpu->uuid);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	SIM_TARGET(device, target);
	SIM_SUPPORTED(target.gpu, SIM_FEATURE_NAME);
	if (target.ci == NULL)
		return sim_copy_text(name, length, target.gpu->name);
	char full[2 * NVML_DEVICE_NAME_V2_BUFFER_SIZE], part[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	struct sim_gi gi;
	SIM_REQUIRE(sim_gi_read(target.gpu, (unsigned int)(target.gi - target.gpu->mig.instances), &gi));
	sim_ci_name(&gi, sim_load(&target.ci->size), part, sizeof(part));
	snprintf(full, sizeof(full), "%s %s", target.gpu->name, part);
	return sim_copy_text(name, length, full);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	SIM_DEVICE(device, gpu);
	SIM_SUPPORTED(gpu, SIM_FEATURE_SERIAL);
	return sim_copy_text(serial, length, gpu->serial);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length)
{
	SIM_DEVICE(device, gpu);
	SIM_SUPPORTED(gpu, SIM_FEATURE_BOARD_PART_NUMBER);
	return sim_copy_text(number, length, gpu->board_part_number);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	SIM_DEVICE(device, gpu);
	return sim_copy_text(version, length, gpu->vbios);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(minor != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_MINOR);
	*minor = sim_load(&gpu->minor);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *module)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(module != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_MODULE_ID);
	*module = gpu->module_id;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(brand != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_BRAND);
	*brand = (nvmlBrandType_t)gpu->brand;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(architecture != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_ARCHITECTURE);
	*architecture = gpu->architecture;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(major != NULL && minor != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_COMPUTE_CAPABILITY);
	*major = (int)gpu->compute_major;
	*minor = (int)gpu->compute_minor;
	return NVML_SUCCESS;
}

/*
 * Bounded text, and the texts of errors.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

nvmlReturn_t sim_copy_text(char *out, unsigned int length, const char *text)
{
	size_t need = strlen(text) + 1;
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (need > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, need);
	return NVML_SUCCESS;
}

static const struct {
	nvmlReturn_t code;
	const char *text;
} errors[] = {
	{NVML_SUCCESS, "Success"},
	{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
	{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
	{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
	{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
	{NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
	{NVML_ERROR_NOT_FOUND, "Not Found"},
	{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
	{NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
	{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
	{NVML_ERROR_TIMEOUT, "Timeout"},
	{NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
	{NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
	{NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
	{NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
	{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
	{NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
	{NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
	{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
	{NVML_ERROR_IN_USE, "In use by another client"},
	{NVML_ERROR_MEMORY, "Insufficient Memory"},
	{NVML_ERROR_NO_DATA, "No data"},
	{NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "vGPU not supported with ECC enabled"},
	{NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
	{NVML_ERROR_FREQ_NOT_SUPPORTED, "Requested frequency not supported"},
	{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
	{NVML_ERROR_DEPRECATED, "Deprecated"},
	{NVML_ERROR_NOT_READY, "Not ready"},
	{NVML_ERROR_GPU_NOT_FOUND, "GPU not found"},
	{NVML_ERROR_INVALID_STATE, "Invalid state"},
	{NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "Reset type not supported"},
};

SIM_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].code == result)
			return errors[i].text;
	}
	return "Unknown Error";
}

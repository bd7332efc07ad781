/*
 * nvidia-smi compute-policy -l | --set-timeslice=N [-i ID,...]
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

static const char *const slices[] = {"Default", "Short", "Medium", "Long"};

#define SLICES (sizeof(slices) / sizeof(slices[0]))

struct policy_options {
	const char *selector;
	const char *slice;
	int list;
};

/* The value of NAME=VALUE or NAME VALUE; NULL if the argument is another. */
static const char *value_of(const char *name, int argc, char **argv, int *at)
{
	size_t length = strlen(name);
	if (strncmp(argv[*at], name, length) == 0 && argv[*at][length] == '=')
		return argv[*at] + length + 1;
	if (strcmp(argv[*at], name) != 0 || *at + 1 >= argc)
		return NULL;
	return argv[++*at];
}

static int parse(int argc, char **argv, struct policy_options *options)
{
	const struct {
		const char *name;
		const char **field;
	} valued[] = {{"-i", &options->selector}, {"--id", &options->selector}, {"--set-timeslice", &options->slice}};
	for (int at = 0; at < argc; at++) {
		const char *value = NULL;
		for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]) && value == NULL; i++) {
			value = value_of(valued[i].name, argc, argv, &at);
			if (value != NULL)
				*valued[i].field = value;
		}
		if (value != NULL)
			continue;
		if (strcmp(argv[at], "-l") != 0 && strcmp(argv[at], "--list") != 0)
			return -1;
		options->list = 1;
	}
	return options->list != (options->slice != NULL) ? 0 : -1;
}

static nvmlReturn_t read_slice(nvmlDevice_t device, unsigned int *slice)
{
	const struct gpusim_functions *functions = tool_private();
	nvmlReturn_t rc = tool_step("nvidia-smi:compute-policy", &device);
	if (rc == NVML_SUCCESS)
		rc = functions != NULL ? functions->get_time_slice(device, slice) : NVML_ERROR_FUNCTION_NOT_FOUND;
	return rc;
}

static nvmlReturn_t write_slice(nvmlDevice_t device, unsigned int slice)
{
	const struct gpusim_functions *functions = tool_private();
	nvmlReturn_t rc = tool_step("nvidia-smi:compute-policy", &device);
	if (rc == NVML_SUCCESS)
		rc = functions != NULL ? functions->set_time_slice(device, slice) : NVML_ERROR_FUNCTION_NOT_FOUND;
	return rc;
}

static int list(const struct smi_gpus *gpus)
{
	printf("+-------------------------------------+\n"
		"| GPU compute policies:               |\n"
		"| GPU     Name              Value     |\n"
		"|=====================================|\n");
	for (unsigned int i = 0; i < gpus->count; i++) {
		unsigned int slice = 0;
		if (gpus->list[i].status != NVML_SUCCESS)
			return smi_report_lost(&gpus->list[i]);
		nvmlReturn_t rc = read_slice(gpus->list[i].device, &slice);
		if (rc != NVML_SUCCESS && rc != NVML_ERROR_NOT_SUPPORTED) {
			printf("Failed to read the compute policies: %s\n", tool_error(rc));
			return (int)(rc < 256 ? rc : 255);
		}
		printf("| %3u     Timeslice         %-9s |\n", gpus->list[i].index, rc == NVML_SUCCESS && slice < SLICES ? slices[slice] : "[N/A]");
	}
	printf("+-------------------------------------+\n");
	return 0;
}

static int set(const struct smi_gpus *gpus, const char *text)
{
	if (strlen(text) != 1 || text[0] < '0' || text[0] >= (char)('0' + SLICES)) {
		printf("Invalid timeslice \"%s\": must be 0=DEFAULT, 1=SHORT, 2=MEDIUM or 3=LONG.\n", text);
		return SMI_USAGE;
	}
	unsigned int slice = (unsigned int)(text[0] - '0');
	for (unsigned int i = 0; i < gpus->count; i++) {
		nvmlPciInfo_t pci = {0};
		if (gpus->list[i].status != NVML_SUCCESS)
			return smi_report_lost(&gpus->list[i]);
		nvmlReturn_t rc = write_slice(gpus->list[i].device, slice);
		if (rc != NVML_SUCCESS) {
			printf("Failed to set timeslice for requested devices : %s\n", tool_error(rc));
			return (int)(rc < 256 ? rc : 255);
		}
		NVML(nvmlDeviceGetPciInfo_v3, gpus->list[i].device, &pci);
		printf("Successfully set timeslice to %s for GPU %s\n", slices[slice], pci.busId);
	}
	return 0;
}

int smi_compute_policy(int argc, char **argv)
{
	static struct smi_gpus gpus;
	struct policy_options options = {0};
	if (parse(argc, argv, &options) != 0) {
		printf("Usage: nvidia-smi compute-policy [-i ID,...] -l | --set-timeslice=N\n"
			"N is 0=DEFAULT, 1=SHORT, 2=MEDIUM or 3=LONG.\n");
		return SMI_USAGE;
	}
	int rc = smi_begin();
	if (rc != 0)
		return rc;
	rc = smi_select(options.selector, &gpus);
	if (rc == 0)
		rc = options.list ? list(&gpus) : set(&gpus, options.slice);
	NVML(nvmlShutdown);
	return rc;
}

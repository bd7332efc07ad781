/*
 * nvidia-smi mig ...
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

static const struct command {
	const char *flag;
	const char *long_flag;
	smi_mig_command *run;
	/* Said when no board had anything to do. */
	const char *nothing;
	/* Commands that a board with MIG off answers too. */
	int any_mode;
} commands[] = {
	{"-lgip", "--list-gpu-instance-profiles", smi_mig_lgip, "No MIG-enabled devices found.", 0},
	{"-lgipp", "--list-gpu-instance-possible-placements", smi_mig_lgipp, "No MIG-capable devices found.", 1},
	{"-lcip", "--list-compute-instance-profiles", smi_mig_lcip, "No GPU instances found: Not Found", 0},
	{"-lgi", "--list-gpu-instances", smi_mig_lgi, "No GPU instances found: Not Found", 0},
	{"-lci", "--list-compute-instances", smi_mig_lci, "No compute instances found: Not Found", 0},
	{"-cgi", "--create-gpu-instance", smi_mig_cgi, "No MIG-enabled devices found.", 0},
	{"-dgi", "--destroy-gpu-instance", smi_mig_dgi, "No GPU instances found: Not Found", 0},
	{"-cci", "--create-compute-instance", smi_mig_cci, "No GPU instances found: Not Found", 0},
	{"-dci", "--destroy-compute-instance", smi_mig_dci, "No compute instances found: Not Found", 0},
};

static const struct command *find_command(const char *arg)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(arg, commands[i].flag) == 0 || strcmp(arg, commands[i].long_flag) == 0)
			return &commands[i];
	}
	return NULL;
}

/* Where the value of an option goes, NULL for one without. */
static const char **field_of(struct smi_mig_options *options, const char *arg)
{
	const struct {
		const char *name, *long_name;
		const char **field;
	} valued[] = {
		{"-i", "--id", &options->selector},
		{"-gi", "--gpu-instance-id", &options->gis},
		{"-ci", "--compute-instance-id", &options->cis},
		{"-cgi", "--create-gpu-instance", &options->gi_profiles},
		{"-cci", "--create-compute-instance", &options->ci_profiles},
	};
	for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]); i++) {
		if (strcmp(arg, valued[i].name) == 0 || strcmp(arg, valued[i].long_name) == 0)
			return valued[i].field;
	}
	return NULL;
}

static int parse(int argc, char **argv, struct smi_mig_options *options, const struct command **command)
{
	for (int at = 0; at < argc; at++) {
		if (strcmp(argv[at], "-C") == 0 || strcmp(argv[at], "--default-compute-instance") == 0) {
			options->fill = 1;
			continue;
		}
		const struct command *found = find_command(argv[at]);
		const char **field = field_of(options, argv[at]);
		if (found != NULL ? *command != NULL : field == NULL)
			return -1;
		if (found != NULL)
			*command = found;
		if (field == NULL)
			continue;
		if (at + 1 < argc && argv[at + 1][0] != '-')
			*field = argv[++at];
		else if (found == NULL || found->run != smi_mig_cci)
			return -1;
	}
	return *command != NULL ? 0 : -1;
}

static int run(const struct command *command, const struct smi_gpus *gpus, const struct smi_mig_options *options)
{
	int did = 0, exit_code = 0;
	for (unsigned int i = 0; i < gpus->count && exit_code == 0; i++) {
		const struct smi_gpu *gpu = &gpus->list[i];
		if (gpu->status != NVML_SUCCESS)
			exit_code = smi_report_lost(gpu);
		else if (command->any_mode || smi_mig_enabled(gpu))
			did += command->run(gpu, options, &exit_code);
	}
	if (did > 0 || exit_code != 0)
		return exit_code;
	printf("%s\n", command->nothing);
	return SMI_NO_DEVICES;
}

int smi_mig(int argc, char **argv)
{
	static struct smi_gpus gpus;
	struct smi_mig_options options = {0};
	const struct command *command = NULL;
	if (parse(argc, argv, &options, &command) != 0) {
		printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
		return SMI_USAGE;
	}
	int rc = smi_begin();
	if (rc != 0)
		return rc;
	rc = smi_select(options.selector, &gpus);
	if (rc == 0)
		rc = run(command, &gpus, &options);
	NVML(nvmlShutdown);
	return rc;
}

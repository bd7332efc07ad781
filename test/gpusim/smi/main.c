/*
 * Command line.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

struct options {
	const char *selector;
	const char *query;
	const char *apps;
	const char *format;
	const char *compute_mode;
	const char *persistence;
	const char *mig_mode;
	int reset;
	int list;
	int topo;
	int help;
};

static void usage(void)
{
	printf("NVIDIA-SMI (simulated)\n\n"
		"  nvidia-smi                     summary\n"
		"  nvidia-smi -L                  list of the GPUs\n"
		"  nvidia-smi topo -m             how the GPUs reach each other\n"
		"  nvidia-smi --query-gpu=F,...   fields, with --format=csv[,noheader][,nounits]\n"
		"  nvidia-smi --query-compute-apps=F,...   the processes, with --format as above\n"
		"  nvidia-smi -c MODE             compute mode: 0, 2 or 3, or a name\n"
		"  nvidia-smi -pm 0|1             persistence mode\n"
		"  nvidia-smi -mig 0|1            MIG mode\n"
		"  nvidia-smi --gpu-reset         reset: pending modes take effect, MIG instances end\n"
		"  nvidia-smi compute-policy -l | --set-timeslice=N   0 default, 1 short, 2 medium, 3 long\n"
		"  nvidia-smi mig -lgip|-lgipp|-lcip|-lgi|-lci   profiles, placements, instances\n"
		"  nvidia-smi mig -cgi PROFILE[:START],... [-C]  make GPU instances, -C: and compute instances\n"
		"  nvidia-smi mig -cci [PROFILE,...] [-gi ID]    make compute instances\n"
		"  nvidia-smi mig -dci|-dgi [-gi ID] [-ci ID]    end instances\n"
		"  -i ID,...                      only these GPUs: index, UUID or PCI address; -c also takes MIG UUIDs\n");
}

/* Returns the value of an option given as NAME=VALUE, NAME VALUE, or as its short name and VALUE; NULL if it is another. */
static const char *value_of(const char *name, const char *short_name, int argc, char **argv, int *at)
{
	const char *arg = argv[*at];
	size_t length = strlen(name);
	if (strncmp(arg, name, length) == 0 && arg[length] == '=')
		return arg + length + 1;
	if (strcmp(arg, name) != 0 && (short_name == NULL || strcmp(arg, short_name) != 0))
		return NULL;
	if (*at + 1 >= argc)
		return NULL;
	return argv[++*at];
}

static int parse_one(struct options *options, int argc, char **argv, int *at)
{
	const struct {
		const char *name, *short_name;
		const char **field;
	} valued[] = {
		{"--id", "-i", &options->selector},
		{"--query-gpu", NULL, &options->query},
		{"--query-compute-apps", NULL, &options->apps},
		{"--format", NULL, &options->format},
		{"--compute-mode", "-c", &options->compute_mode},
		{"--persistence-mode", "-pm", &options->persistence},
		{"--multi-instance-gpu", "-mig", &options->mig_mode},
	};
	for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]); i++) {
		const char *value = value_of(valued[i].name, valued[i].short_name, argc, argv, at);
		if (value != NULL) {
			*valued[i].field = value;
			return 0;
		}
	}
	const char *arg = argv[*at];
	if (strcmp(arg, "-L") == 0 || strcmp(arg, "--list-gpus") == 0)
		options->list = 1;
	else if (strcmp(arg, "-r") == 0 || strcmp(arg, "--gpu-reset") == 0)
		options->reset = 1;
	else if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)
		options->help = 1;
	else
		return -1;
	return 0;
}

static int parse(struct options *options, int argc, char **argv)
{
	int at = 1;
	if (argc > 1 && strcmp(argv[1], "topo") == 0) {
		options->topo = 1;
		if (argc > 2 && (strcmp(argv[2], "-m") == 0 || strcmp(argv[2], "--matrix") == 0))
			at = 3;
		else
			return -1;
	}
	for (; at < argc; at++) {
		if (parse_one(options, argc, argv, &at) != 0) {
			printf("Invalid combination of input arguments: \"%s\". Please run 'nvidia-smi -h' for help.\n", argv[at]);
			return -1;
		}
	}
	return 0;
}

static int run(const struct options *options)
{
	static struct smi_gpus gpus;
	int rc = smi_select(options->selector, &gpus);
	if (rc != 0)
		return rc;
	if (options->list)
		return smi_list(&gpus);
	if (options->topo)
		return smi_topo(&gpus);
	if (options->query != NULL)
		return smi_query(&gpus, options->query, options->format);
	if (options->apps != NULL)
		return smi_query_processes(&gpus, options->apps, options->format);
	if (options->compute_mode != NULL)
		return smi_set_compute_mode(&gpus, options->compute_mode);
	if (options->persistence != NULL)
		return smi_set_persistence(&gpus, options->persistence);
	if (options->mig_mode != NULL)
		return smi_set_mig(&gpus, options->mig_mode, options->selector != NULL);
	if (options->reset)
		return smi_reset(&gpus);
	return smi_summary(&gpus);
}

int main(int argc, char **argv)
{
	struct options options = {0};
	if (argc > 1 && strcmp(argv[1], "mig") == 0)
		return smi_mig(argc - 2, argv + 2);
	if (argc > 1 && strcmp(argv[1], "compute-policy") == 0)
		return smi_compute_policy(argc - 2, argv + 2);
	if (parse(&options, argc, argv) != 0)
		return SMI_USAGE;
	if (options.help) {
		usage();
		return 0;
	}
	int rc = smi_begin();
	if (rc != 0)
		return rc;
	rc = run(&options);
	NVML(nvmlShutdown);
	return rc;
}

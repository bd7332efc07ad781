/*
 * Internal interface of nvidia-smi's MIG commands.
 */
#ifndef SMI_MIG_H
#define SMI_MIG_H

#include "smi.h"

#define SMI_MAX_GIS 32u
#define SMI_MAX_PROFILES 64u
#define SMI_MAX_CIS 8u

/* What a MIG command was given. Lists are texts such as "9,3g.20gb:4". */
struct smi_mig_options {
	const char *selector;
	const char *gi_profiles;
	const char *ci_profiles;
	const char *gis;
	const char *cis;
	/* -C: each new GPU instance gets a compute instance. */
	int fill;
};

struct smi_gi {
	unsigned int gpu;
	nvmlGpuInstance_t handle;
	nvmlGpuInstanceInfo_t info;
	nvmlGpuInstanceProfileInfo_v2_t profile;
};

struct smi_ci {
	nvmlComputeInstance_t handle;
	nvmlComputeInstanceInfo_t info;
	nvmlComputeInstanceProfileInfo_v2_t profile;
};

/* mig_find.c: what is there. */
int smi_mig_enabled(const struct smi_gpu *gpu);
unsigned int smi_gi_profiles(nvmlDevice_t device, nvmlGpuInstanceProfileInfo_v2_t *list);
nvmlReturn_t smi_gi_profile_named(nvmlDevice_t device, const char *text, nvmlGpuInstanceProfileInfo_v2_t *profile);
nvmlReturn_t smi_ci_profile(nvmlGpuInstance_t gi, unsigned int number, nvmlComputeInstanceProfileInfo_v2_t *profile);
nvmlReturn_t smi_ci_profile_named(const struct smi_gi *gi, const char *text, nvmlComputeInstanceProfileInfo_v2_t *profile);
unsigned int smi_gis(const struct smi_gpu *gpu, struct smi_gi *list);
unsigned int smi_cis(const struct smi_gi *gi, struct smi_ci *list);
int smi_listed(const char *list, unsigned int number);
const char *smi_next(const char *list, char *word, size_t size);

/* The commands, for one board each; 0 when they found nothing to do. */
typedef int smi_mig_command(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code);
smi_mig_command smi_mig_lgip, smi_mig_lgipp, smi_mig_lcip, smi_mig_lgi, smi_mig_lci;
smi_mig_command smi_mig_cgi, smi_mig_dgi, smi_mig_cci, smi_mig_dci;

/* mig_print.c */
void smi_row(unsigned int width, const char *format, ...) __attribute__((format(printf, 2, 3)));
void smi_line(unsigned int width, char with);

#endif

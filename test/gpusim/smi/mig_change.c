/*
 * nvidia-smi mig -cgi -dgi -cci -dci
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mig.h"

static int failed(nvmlReturn_t rc, int *exit_code)
{
	*exit_code = (int)(rc < 256 ? rc : 255);
	return 1;
}

static nvmlReturn_t create_ci(const struct smi_gi *gi, const char *text)
{
	nvmlComputeInstanceProfileInfo_v2_t profile;
	nvmlComputeInstance_t handle;
	nvmlComputeInstanceInfo_t info;
	nvmlReturn_t rc = smi_ci_profile_named(gi, text, &profile);
	if (rc == NVML_SUCCESS)
		rc = NVML(nvmlGpuInstanceCreateComputeInstance, gi->handle, profile.id, &handle);
	if (rc == NVML_SUCCESS)
		rc = NVML(nvmlComputeInstanceGetInfo_v2, handle, &info);
	if (rc == NVML_SUCCESS)
		printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
			info.id, gi->gpu, gi->info.id, profile.name, profile.id);
	else
		printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n",
			gi->gpu, gi->info.id, text != NULL ? text : "(default)", tool_error(rc));
	return rc;
}

/* A word is a profile, with a colon and the first memory unit where that matters. */
static nvmlReturn_t create_gi(const struct smi_gpu *gpu, char *word, struct smi_gi *gi)
{
	char *colon = strchr(word, ':');
	*gi = (struct smi_gi){.gpu = gpu->index};
	if (colon != NULL)
		*colon = '\0';
	nvmlReturn_t rc = smi_gi_profile_named(gpu->device, word, &gi->profile);
	if (rc == NVML_SUCCESS && colon == NULL) {
		rc = NVML(nvmlDeviceCreateGpuInstance, gpu->device, gi->profile.id, &gi->handle);
	} else if (rc == NVML_SUCCESS) {
		nvmlGpuInstancePlacement_t placements[64];
		unsigned int count = 64;
		rc = NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, gpu->device, gi->profile.id, placements, &count);
		placements[0].start = (unsigned int)strtoul(colon + 1, NULL, 10);
		if (rc == NVML_SUCCESS)
			rc = NVML(nvmlDeviceCreateGpuInstanceWithPlacement, gpu->device, gi->profile.id, placements, &gi->handle);
	}
	if (rc == NVML_SUCCESS)
		rc = NVML(nvmlGpuInstanceGetInfo, gi->handle, &gi->info);
	if (rc == NVML_SUCCESS)
		printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n",
			gi->info.id, gpu->index, gi->profile.name, gi->profile.id);
	else
		printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu->index, word, tool_error(rc));
	return rc;
}

int smi_mig_cgi(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	char word[64];
	for (const char *at = smi_next(options->gi_profiles, word, sizeof(word)); at != NULL; at = smi_next(at, word, sizeof(word))) {
		struct smi_gi gi;
		nvmlReturn_t rc = create_gi(gpu, word, &gi);
		if (rc == NVML_SUCCESS && options->fill)
			rc = create_ci(&gi, NULL);
		if (rc != NVML_SUCCESS) {
			printf("Failed to create GPU instances: %s\n", tool_error(rc));
			return failed(rc, exit_code);
		}
	}
	return 1;
}

int smi_mig_cci(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis), matched = 0;
	for (unsigned int i = 0; i < count; i++) {
		char word[64];
		nvmlReturn_t rc = NVML_SUCCESS;
		if (!smi_listed(options->gis, gis[i].info.id))
			continue;
		matched++;
		const char *at = options->ci_profiles;
		if (at == NULL)
			rc = create_ci(&gis[i], NULL);
		while (rc == NVML_SUCCESS && (at = smi_next(at, word, sizeof(word))) != NULL)
			rc = create_ci(&gis[i], word);
		if (rc != NVML_SUCCESS) {
			printf("Failed to create compute instances: %s\n", tool_error(rc));
			return failed(rc, exit_code);
		}
	}
	return matched > 0;
}

int smi_mig_dgi(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis), matched = 0;
	for (unsigned int i = 0; i < count; i++) {
		unsigned int id = gis[i].info.id;
		if (!smi_listed(options->gis, id))
			continue;
		matched++;
		nvmlReturn_t rc = NVML(nvmlGpuInstanceDestroy, gis[i].handle);
		if (rc != NVML_SUCCESS) {
			printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", id, gpu->index, tool_error(rc));
			printf("Failed to destroy GPU instances: %s\n", tool_error(rc));
			return failed(rc, exit_code);
		}
		printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", id, gpu->index);
	}
	return matched > 0;
}

static nvmlReturn_t destroy_cis(const struct smi_gi *gi, const char *ids, unsigned int *matched)
{
	struct smi_ci cis[SMI_MAX_CIS];
	unsigned int count = smi_cis(gi, cis);
	for (unsigned int i = 0; i < count; i++) {
		unsigned int id = cis[i].info.id;
		if (!smi_listed(ids, id))
			continue;
		(*matched)++;
		nvmlReturn_t rc = NVML(nvmlComputeInstanceDestroy, cis[i].handle);
		if (rc != NVML_SUCCESS) {
			printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", id, gi->gpu, gi->info.id, tool_error(rc));
			return rc;
		}
		printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", id, gi->gpu, gi->info.id);
	}
	return NVML_SUCCESS;
}

int smi_mig_dci(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis), matched = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (!smi_listed(options->gis, gis[i].info.id))
			continue;
		nvmlReturn_t rc = destroy_cis(&gis[i], options->cis, &matched);
		if (rc != NVML_SUCCESS) {
			printf("Failed to destroy compute instances: %s\n", tool_error(rc));
			return failed(rc, exit_code);
		}
	}
	return matched > 0;
}

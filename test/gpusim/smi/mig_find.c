/*
 * Profiles and instances that a board has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "mig.h"

int smi_mig_enabled(const struct smi_gpu *gpu)
{
	unsigned int current = 0, pending = 0;
	return NVML(nvmlDeviceGetMigMode, gpu->device, &current, &pending) == NVML_SUCCESS && current == NVML_DEVICE_MIG_ENABLE;
}

/* All profiles of a board, those with few slices first, as their numbers go beyond that. */
unsigned int smi_gi_profiles(nvmlDevice_t device, nvmlGpuInstanceProfileInfo_v2_t *list)
{
	unsigned int count = 0;
	nvmlReturn_t rc = NVML_SUCCESS;
	for (unsigned int number = 0; (rc == NVML_SUCCESS || rc == NVML_ERROR_NOT_SUPPORTED) && count < SMI_MAX_PROFILES; number++) {
		nvmlGpuInstanceProfileInfo_v2_t next = {.version = nvmlGpuInstanceProfileInfo_v2};
		rc = NVML(nvmlDeviceGetGpuInstanceProfileInfoV, device, number, &next);
		if (rc != NVML_SUCCESS)
			continue;
		unsigned int at = count++;
		for (; at > 0 && list[at - 1].sliceCount > next.sliceCount; at--)
			list[at] = list[at - 1];
		list[at] = next;
	}
	return count;
}

nvmlReturn_t smi_ci_profile(nvmlGpuInstance_t gi, unsigned int number, nvmlComputeInstanceProfileInfo_v2_t *profile)
{
	memset(profile, 0, sizeof(*profile));
	profile->version = nvmlComputeInstanceProfileInfo_v2;
	return NVML(nvmlGpuInstanceGetComputeInstanceProfileInfoV, gi, number, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, profile);
}

/* Whether text means a profile: its id, its name, or its name with the prefix. */
static int means(const char *text, unsigned int id, const char *name)
{
	static const char prefix[] = "MIG ";
	char *end = NULL;
	unsigned long number = strtoul(text, &end, 10);
	if (end != text && *end == '\0')
		return number == id;
	if (strncasecmp(name, prefix, sizeof(prefix) - 1) == 0 && strncasecmp(text, prefix, sizeof(prefix) - 1) != 0)
		name += sizeof(prefix) - 1;
	return strcasecmp(text, name) == 0;
}

nvmlReturn_t smi_gi_profile_named(nvmlDevice_t device, const char *text, nvmlGpuInstanceProfileInfo_v2_t *profile)
{
	nvmlGpuInstanceProfileInfo_v2_t list[SMI_MAX_PROFILES];
	unsigned int count = smi_gi_profiles(device, list);
	for (unsigned int i = 0; i < count; i++) {
		if (!means(text, list[i].id, list[i].name))
			continue;
		*profile = list[i];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

/* Without text it is the profile that fills the GPU instance. */
nvmlReturn_t smi_ci_profile_named(const struct smi_gi *gi, const char *text, nvmlComputeInstanceProfileInfo_v2_t *profile)
{
	for (unsigned int number = 0;; number++) {
		nvmlReturn_t rc = smi_ci_profile(gi->handle, number, profile);
		if (rc == NVML_SUCCESS && (text == NULL ? profile->sliceCount == gi->profile.sliceCount : means(text, profile->id, profile->name)))
			return NVML_SUCCESS;
		if (rc != NVML_SUCCESS && rc != NVML_ERROR_NOT_SUPPORTED)
			return rc;
	}
}

unsigned int smi_gis(const struct smi_gpu *gpu, struct smi_gi *list)
{
	nvmlGpuInstanceProfileInfo_v2_t profiles[SMI_MAX_PROFILES];
	unsigned int found = 0, known = smi_gi_profiles(gpu->device, profiles);
	for (unsigned int p = 0; p < known; p++) {
		nvmlGpuInstance_t handles[SMI_MAX_GIS];
		unsigned int count = SMI_MAX_GIS;
		if (NVML(nvmlDeviceGetGpuInstances, gpu->device, profiles[p].id, handles, &count) != NVML_SUCCESS)
			continue;
		for (unsigned int i = 0; i < count && found < SMI_MAX_GIS; i++) {
			struct smi_gi *gi = &list[found];
			*gi = (struct smi_gi){.gpu = gpu->index, .handle = handles[i], .profile = profiles[p]};
			if (NVML(nvmlGpuInstanceGetInfo, gi->handle, &gi->info) == NVML_SUCCESS)
				found++;
		}
	}
	return found;
}

unsigned int smi_cis(const struct smi_gi *gi, struct smi_ci *list)
{
	unsigned int found = 0;
	nvmlComputeInstanceProfileInfo_v2_t profile;
	nvmlReturn_t rc = NVML_SUCCESS;
	for (unsigned int number = 0; rc == NVML_SUCCESS || rc == NVML_ERROR_NOT_SUPPORTED; number++) {
		nvmlComputeInstance_t handles[SMI_MAX_CIS];
		unsigned int count = SMI_MAX_CIS;
		rc = smi_ci_profile(gi->handle, number, &profile);
		if (rc != NVML_SUCCESS || NVML(nvmlGpuInstanceGetComputeInstances, gi->handle, profile.id, handles, &count) != NVML_SUCCESS)
			continue;
		for (unsigned int i = 0; i < count && found < SMI_MAX_CIS; i++) {
			struct smi_ci *ci = &list[found];
			*ci = (struct smi_ci){.handle = handles[i], .profile = profile};
			if (NVML(nvmlComputeInstanceGetInfo_v2, ci->handle, &ci->info) == NVML_SUCCESS)
				found++;
		}
	}
	return found;
}

/* Copies the first word of a list and returns the rest, NULL at the end. */
const char *smi_next(const char *list, char *word, size_t size)
{
	if (list == NULL || *list == '\0')
		return NULL;
	size_t length = strcspn(list, ",");
	snprintf(word, size, "%.*s", (int)length, list);
	return list + length + (list[length] == ',');
}

/* No list means every number. */
int smi_listed(const char *list, unsigned int number)
{
	char word[32];
	int listed = list == NULL;
	for (const char *at = smi_next(list, word, sizeof(word)); at != NULL; at = smi_next(at, word, sizeof(word)))
		listed |= strtoul(word, NULL, 10) == number;
	return listed;
}

/*
 * Limits of device memory for the processes of a cgroup.
 *
 * A cgroup is known by its inode: that is the same on the host and in a container that sees
 * its own cgroup as the root.
 */
#define _GNU_SOURCE /* statx */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"

#define CGROUPS "/sys/fs/cgroup"

static uint64_t inode_of(const char *path)
{
	struct statx info;
	if (statx(AT_FDCWD, path, 0, STATX_INO, &info) != 0 || !S_ISDIR(info.stx_mode))
		return 0;
	return info.stx_ino;
}

/* The cgroup of this process, or the directory that stands for it where there is no cgroup v2. */
static uint64_t own_cgroup(void)
{
	char line[PATH_MAX], path[PATH_MAX + sizeof(CGROUPS)];
	const char *given = getenv("GPUSIM_CGROUP");
	if (given != NULL && *given != '\0')
		return inode_of(given);
	uint64_t inode = 0;
	FILE *file = fopen("/proc/self/cgroup", "re");
	while (file != NULL && inode == 0 && fgets(line, sizeof(line), file) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::", 3) != 0)
			continue;
		snprintf(path, sizeof(path), CGROUPS "%s", line + 3);
		inode = inode_of(path);
	}
	if (file != NULL)
		fclose(file);
	return inode;
}

static int in_force(const struct sim_memory_limit *limit)
{
	return __atomic_load_n(&limit->inode, __ATOMIC_ACQUIRE) != 0;
}

const struct sim_memory_limit *sim_own_limit(const struct sim_gpu *gpu)
{
	uint64_t inode = sim_load(&gpu->memory_limit_count) > 0 ? own_cgroup() : 0;
	for (unsigned int i = 0; inode != 0 && i < SIM_MAX_MEMORY_LIMITS; i++) {
		if (__atomic_load_n(&gpu->memory_limits[i].inode, __ATOMIC_ACQUIRE) == inode)
			return &gpu->memory_limits[i];
	}
	return NULL;
}

/* The entry of a cgroup; where it has none a free one, where there is none NULL. */
static struct sim_memory_limit *entry_of(struct sim_gpu *gpu, uint64_t inode)
{
	struct sim_memory_limit *free_one = NULL;
	for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++) {
		struct sim_memory_limit *limit = &gpu->memory_limits[i];
		if (limit->inode == inode)
			return limit;
		/* A limit goes with its cgroup. */
		if (in_force(limit) && inode_of(limit->cgroup) != limit->inode)
			__atomic_store_n(&limit->inode, 0, __ATOMIC_RELEASE);
		if (!in_force(limit) && free_one == NULL)
			free_one = limit;
	}
	return free_one;
}

static nvmlReturn_t store(struct sim_gpu *gpu, const nvmlSetMemoryLimits_v1_t *limits, uint64_t inode)
{
	nvmlReturn_t rc = sim_lock();
	if (rc != NVML_SUCCESS)
		return rc;
	int clear = limits->softLimit == 0 && limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX;
	struct sim_memory_limit *limit = entry_of(gpu, inode);
	if (limit == NULL) {
		sim_unlock();
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	}
	snprintf(limit->cgroup, sizeof(limit->cgroup), "%s", limits->nameSpace);
	limit->soft = limits->softLimit;
	limit->hard = limits->hardLimit;
	__atomic_store_n(&limit->inode, clear ? 0 : inode, __ATOMIC_RELEASE);
	unsigned int count = 0;
	for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++)
		count += (unsigned int)in_force(&gpu->memory_limits[i]);
	sim_store(&gpu->memory_limit_count, count);
	sim_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(limits != NULL && limits->nameSpace != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_MEMORY_LIMITS);
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	SIM_REQUIRE(limits->softLimit <= limits->hardLimit);
	SIM_REQUIRE(limits->hardLimit <= gpu->memory_total || limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX);
	SIM_REQUIRE(strlen(limits->nameSpace) < sizeof(gpu->memory_limits[0].cgroup));
	uint64_t inode = inode_of(limits->nameSpace);
	if (inode == 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	return store(gpu, limits, inode);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(limits != NULL && limits->nameSpace != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_MEMORY_LIMITS);
	uint64_t inode = inode_of(limits->nameSpace);
	if (inode == 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++) {
		const struct sim_memory_limit *limit = &gpu->memory_limits[i];
		if (__atomic_load_n(&limit->inode, __ATOMIC_ACQUIRE) != inode)
			continue;
		limits->softLimit = limit->soft;
		limits->hardLimit = limit->hard;
		limits->currentUsed = sim_limit_used(gpu, limit);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

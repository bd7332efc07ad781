/*
 * Initialisation, and which boards this process sees.
 *
 * A board is visible when its device node exists at the time of the first nvmlInit, as
 * with the real library: a board that appears later needs a new session, one that leaves
 * answers GPU_IS_LOST until then.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mig.h"
#include "registry.h"

static struct {
	pthread_mutex_t mutex;
	uint32_t references;
	uint32_t count;
	uint32_t immune;
	unsigned int slots[SIM_MAX_GPUS];
} session = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Handles outlive a session, as the real library's do, so they are not allocated. */
static struct nvmlDevice_st devices[SIM_MAX_GPUS];

static int has_node(const char *dev, const char *name)
{
	char path[PATH_MAX];
	return snprintf(path, sizeof(path), "%s/%s", dev, name) < (int)sizeof(path) && access(path, F_OK) == 0;
}

int sim_find_dev(char *dev, size_t size)
{
	char root[PATH_MAX];
	const char *given = getenv("GPUSIM_DEV");
	if (given != NULL && *given != '\0')
		return snprintf(dev, size, "%s", given) < (int)size ? 0 : -1;
	if (sim_find_root(root, sizeof(root)) != 0)
		return -1;
	return snprintf(dev, size, "%s/dev", root) < (int)size ? 0 : -1;
}

static nvmlReturn_t enumerate(void)
{
	char dev[PATH_MAX], name[32];
	const struct sim_node *node = sim_state();
	if (sim_find_dev(dev, sizeof(dev)) != 0 || !has_node(dev, "nvidiactl"))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	session.count = 0;
	for (unsigned int slot = 0; slot < node->gpu_count && slot < SIM_MAX_GPUS; slot++) {
		const struct sim_gpu *gpu = &node->gpus[slot];
		snprintf(name, sizeof(name), "nvidia%u", sim_load(&gpu->minor));
		if (sim_load(&gpu->absent) || !has_node(dev, name))
			continue;
		sim_session_hold(slot);
		session.slots[session.count++] = slot;
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t start(const char *function)
{
	pthread_mutex_lock(&session.mutex);
	nvmlReturn_t rc = NVML_SUCCESS;
	if (session.references == 0) {
		sim_store(&session.immune, getenv("GPUSIM_IMMUNE") != NULL);
		rc = sim_state_open();
		if (rc == NVML_SUCCESS)
			rc = sim_fault(function, -1);
		if (rc == NVML_SUCCESS)
			rc = enumerate();
	}
	if (rc == NVML_SUCCESS)
		__atomic_add_fetch(&session.references, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&session.mutex);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return start(__func__);
}
SIM_ALIAS(nvmlInit, nvmlInit_v2);

SIM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	SIM_REQUIRE((flags & ~(unsigned int)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT)) == 0);
	return start(__func__);
}

SIM_EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t rc = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_lock(&session.mutex);
	if (session.references > 0) {
		if (__atomic_sub_fetch(&session.references, 1, __ATOMIC_RELEASE) == 0)
			sim_session_release();
		rc = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&session.mutex);
	return rc;
}

int sim_started(void)
{
	return sim_load(&session.references) > 0;
}

int sim_immune(void)
{
	return sim_load(&session.immune) != 0;
}

nvmlReturn_t sim_enter(const char *function)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	return sim_fault(function, -1);
}

nvmlReturn_t sim_stub(const char *function)
{
	nvmlReturn_t rc = sim_enter(function);
	return rc == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : rc;
}

nvmlReturn_t sim_enter_target(const char *function, nvmlDevice_t device, struct sim_target *target)
{
	if (!sim_started())
		return NVML_ERROR_UNINITIALIZED;
	target->gpu = sim_handle_gpu(device);
	int alive = 1;
	if (target->gpu == NULL)
		alive = sim_mig_target(device, target);
	if (target->gpu == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t rc = sim_fault(function, (int)sim_slot(target->gpu));
	if (rc != NVML_SUCCESS)
		return rc;
	if (sim_load(&target->gpu->lost) || sim_load(&target->gpu->absent))
		return NVML_ERROR_GPU_IS_LOST;
	return alive ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu)
{
	struct sim_target target = {0};
	nvmlReturn_t rc = sim_enter_target(function, device, &target);
	*gpu = target.gpu;
	if (rc == NVML_SUCCESS && target.gi != NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	return rc;
}

unsigned int sim_visible_count(void)
{
	return session.count;
}

struct sim_gpu *sim_visible(unsigned int index)
{
	return index < session.count ? &sim_state()->gpus[session.slots[index]] : NULL;
}

unsigned int sim_slot(const struct sim_gpu *gpu)
{
	return (unsigned int)(gpu - sim_state()->gpus);
}

nvmlDevice_t sim_handle(const struct sim_gpu *gpu)
{
	return (nvmlDevice_t){.handle = &devices[sim_slot(gpu)]};
}

struct sim_gpu *sim_session_gpu(unsigned int slot)
{
	for (unsigned int i = 0; i < session.count; i++) {
		if (session.slots[i] == slot)
			return &sim_state()->gpus[slot];
	}
	return NULL;
}

/* Any number may come in as a handle: it is compared, never followed. */
struct sim_gpu *sim_handle_gpu(nvmlDevice_t device)
{
	uintptr_t offset = (uintptr_t)device.handle - (uintptr_t)devices;
	if (offset >= sizeof(devices) || offset % sizeof(devices[0]) != 0)
		return NULL;
	return sim_session_gpu((unsigned int)(offset / sizeof(devices[0])));
}

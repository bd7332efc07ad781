/*
 * Event sets: each reads the shared ring from where it was created, sleeping on the
 * ring's sequence number.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define MAX_SETS 128u

struct nvmlEventSet_st {
	uint32_t used;
	uint32_t cursor;
	uint64_t masks[SIM_MAX_GPUS];
};

static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st sets[MAX_SETS];

static struct nvmlEventSet_st *find_set(nvmlEventSet_t set)
{
	uintptr_t offset = (uintptr_t)set.handle - (uintptr_t)sets;
	if (offset >= sizeof(sets) || offset % sizeof(sets[0]) != 0 || !sim_load(&set.handle->used))
		return NULL;
	return set.handle;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	SIM_ENTER();
	SIM_REQUIRE(set != NULL);
	nvmlReturn_t rc = NVML_ERROR_INSUFFICIENT_RESOURCES;
	pthread_mutex_lock(&sets_mutex);
	for (unsigned int i = 0; i < MAX_SETS && rc != NVML_SUCCESS; i++) {
		if (sets[i].used)
			continue;
		memset(&sets[i], 0, sizeof(sets[i]));
		sets[i].cursor = sim_load(&sim_state()->event_seq);
		__atomic_store_n(&sets[i].used, 1, __ATOMIC_RELEASE);
		set->handle = &sets[i];
		rc = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&sets_mutex);
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	SIM_ENTER();
	struct nvmlEventSet_st *found = find_set(set);
	SIM_REQUIRE(found != NULL);
	__atomic_store_n(&found->used, 0, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(types != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_EVENTS);
	*types = gpu->supported_events;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	SIM_DEVICE(device, gpu);
	struct nvmlEventSet_st *found = find_set(set);
	SIM_REQUIRE(found != NULL);
	SIM_SUPPORTED(gpu, SIM_FEATURE_EVENTS);
	if ((types & ~gpu->supported_events) != 0)
		return NVML_ERROR_NOT_SUPPORTED;
	__atomic_or_fetch(&found->masks[sim_slot(gpu)], types, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

/* Moves the cursor to the next event that the set wants. */
static int next_event(struct nvmlEventSet_st *set, uint32_t written, nvmlEventData_t *data)
{
	const struct sim_node *node = sim_state();
	if (written - set->cursor > SIM_MAX_EVENTS)
		set->cursor = written - SIM_MAX_EVENTS;
	while (set->cursor != written) {
		const struct sim_event *event = &node->events[set->cursor++ % SIM_MAX_EVENTS];
		if (event->gpu >= SIM_MAX_GPUS)
			continue;
		if ((__atomic_load_n(&set->masks[event->gpu], __ATOMIC_ACQUIRE) & event->type) == 0)
			continue;
		data->device = sim_handle(&node->gpus[event->gpu]);
		data->eventType = event->type;
		data->eventData = event->data;
		data->gpuInstanceId = event->gpu_instance_id;
		data->computeInstanceId = event->compute_instance_id;
		return 1;
	}
	return 0;
}

static int64_t clock_nsec(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	SIM_ENTER();
	struct nvmlEventSet_st *found = find_set(set);
	SIM_REQUIRE(found != NULL && data != NULL);
	int64_t deadline = clock_nsec() + (int64_t)timeout_ms * 1000000;
	for (;;) {
		uint32_t written = sim_load(&sim_state()->event_seq);
		if (next_event(found, written, data))
			return NVML_SUCCESS;
		int64_t left = deadline - clock_nsec();
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
		/* Shared, not private: the writer is another process. */
		syscall(SYS_futex, &sim_state()->event_seq, FUTEX_WAIT, written, &timeout, NULL, 0);
	}
}
SIM_ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2);

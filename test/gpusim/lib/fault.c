/*
 * Injected faults: a call that fails, is slow, or hangs until the fault is cleared.
 */
#include <string.h>
#include <time.h>

#include "sim.h"

#define HANG UINT64_MAX
#define SLICE_USEC 2000u

/* Length of a function's name without its _vN. */
static size_t stem(const char *name)
{
	size_t length = strlen(name);
	size_t end = length;
	while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9')
		end--;
	if (end < length && end > 2 && name[end - 1] == 'v' && name[end - 2] == '_')
		return end - 2;
	return length;
}

/* A fault on nvmlDeviceGetCount also means nvmlDeviceGetCount_v2: callers rarely know which they use. */
static int same_function(const char *a, const char *b)
{
	if (strcmp(a, "*") == 0)
		return 1;
	size_t length = stem(a);
	return length == stem(b) && strncmp(a, b, length) == 0;
}

static void sleep_usec(uint64_t usec)
{
	struct timespec left = {.tv_sec = (time_t)(usec / 1000000), .tv_nsec = (long)(usec % 1000000) * 1000};
	while (nanosleep(&left, &left) != 0)
		;
}

static uint64_t now_usec(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/*
 * Sleeps in slices, to wake soon after the faults were changed. The clock says when it is over:
 * on a busy machine a slice takes twice its time, and hundreds of them would add up.
 */
static void delay(const struct sim_node *node, uint64_t usec)
{
	unsigned int epoch = sim_load(&node->fault_epoch);
	uint64_t end = usec == HANG ? HANG : now_usec() + usec;
	for (uint64_t now = now_usec(); now < end && sim_load(&node->fault_epoch) == epoch; now = now_usec())
		sleep_usec(end - now < SLICE_USEC ? end - now : SLICE_USEC);
}

/* Counts *left down by one unless it is negative (forever) or was zero. */
static int take_one(int64_t *left)
{
	int64_t now = __atomic_load_n(left, __ATOMIC_ACQUIRE);
	/* A read-only container cannot count: the fault then stays. */
	if (now < 0 || (now > 0 && !sim_state_writable()))
		return 1;
	while (now > 0) {
		if (__atomic_compare_exchange_n(left, &now, now - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return 1;
	}
	return 0;
}

static int passes_unharmed(uint32_t *after)
{
	uint32_t now = sim_load(after);
	while (now > 0 && sim_state_writable()) {
		if (__atomic_compare_exchange_n(after, &now, now - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return 1;
	}
	return 0;
}

nvmlReturn_t sim_fault(const char *function, int slot)
{
	struct sim_node *node = sim_state();
	/* Faults are for the software under test, not for the tools that arrange its node. */
	if (sim_immune())
		return NVML_SUCCESS;
	unsigned int latency = sim_load(&node->call_latency_usec);
	if (latency > 0)
		sleep_usec(latency);
	if (sim_load(&node->fault_count) == 0)
		return NVML_SUCCESS;
	for (unsigned int i = 0; i < SIM_MAX_FAULTS; i++) {
		struct sim_fault *fault = &node->faults[i];
		if (!sim_load(&fault->armed) || !same_function(fault->function, function))
			continue;
		if (fault->gpu >= 0 && fault->gpu != slot)
			continue;
		if (passes_unharmed(&fault->after) || !take_one(&fault->remaining))
			continue;
		nvmlReturn_t code = (nvmlReturn_t)fault->code;
		delay(node, fault->delay_usec);
		if (code != NVML_SUCCESS)
			return code;
	}
	return NVML_SUCCESS;
}

/*
 * Opening a device as a program does that computes on it: which processes the compute mode
 * admits, and how much memory they get.
 */
#include "private_table.h"
#include "registry.h"

static unsigned int gi_of(const struct sim_target *target)
{
	return target->gi != NULL ? (unsigned int)(target->gi - target->gpu->mig.instances) : SIM_NO_INSTANCE;
}

static unsigned int ci_of(const struct sim_target *target)
{
	return target->ci != NULL ? (unsigned int)(target->ci - target->gi->compute_instances) : SIM_NO_INSTANCE;
}

/* Whether the compute mode lets one more in, of those that are there. */
static int admits(const struct sim_target *target, const struct sim_client *clients, unsigned int count, enum gpusim_kind kind)
{
	unsigned int mode = sim_load(target->ci != NULL ? &target->ci->compute_mode : &target->gpu->compute_mode);
	unsigned int others = 0, servers = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (!sim_client_in(&clients[i], gi_of(target), ci_of(target)))
			continue;
		others++;
		servers += clients[i].kind == GPUSIM_SERVER;
	}
	if (mode == NVML_COMPUTEMODE_PROHIBITED)
		return 0;
	if (kind == GPUSIM_CLIENT)
		return servers > 0;
	return mode == NVML_COMPUTEMODE_DEFAULT || others == 0;
}

static unsigned int free_place(const struct sim_client *clients, unsigned int count)
{
	unsigned int place = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (clients[i].place == place) {
			place++;
			i = (unsigned int)-1;
		}
	}
	return place;
}

static nvmlReturn_t open_locked(const struct sim_target *target, enum gpusim_kind kind)
{
	struct sim_client clients[SIM_MAX_CLIENTS];
	unsigned int slot = sim_slot(target->gpu);
	if (sim_own_client(slot) != NULL)
		return NVML_ERROR_IN_USE;
	/* The instance may have ended since the handle was checked. */
	if (target->ci != NULL && (!sim_load(&target->gi->used) || !sim_load(&target->ci->used)))
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int count = sim_clients(target->gpu, clients);
	if (!admits(target, clients, count, kind))
		return NVML_ERROR_IN_USE;
	struct sim_client client = {.place = free_place(clients, count), .gi = gi_of(target), .ci = ci_of(target), .kind = kind};
	if (client.place >= SIM_MAX_CLIENTS || sim_register(slot, &client) != 0)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_client_open(nvmlDevice_t device, enum gpusim_kind kind)
{
	struct sim_target target = {0};
	nvmlReturn_t rc = sim_enter_target("nvmlDeviceOpen", device, &target);
	if (rc != NVML_SUCCESS)
		return rc;
	/* A board in MIG mode is used by its instances only. */
	if (target.gi == NULL && sim_load(&target.gpu->mig.current_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	rc = sim_lock_to_read();
	if (rc != NVML_SUCCESS)
		return rc;
	rc = open_locked(&target, kind);
	sim_unlock();
	return rc;
}

nvmlReturn_t sim_client_close(nvmlDevice_t device)
{
	struct sim_target target = {0};
	nvmlReturn_t rc = sim_enter_target("nvmlDeviceClose", device, &target);
	/* Also a lost board is let go. */
	if (target.gpu == NULL)
		return rc;
	rc = sim_lock_to_read();
	if (rc != NVML_SUCCESS)
		return rc;
	sim_unregister(sim_slot(target.gpu));
	sim_unlock();
	return NVML_SUCCESS;
}

/* The bytes that processes of the cgroup of limit took. */
static unsigned long long taken_of_limit(const struct sim_gpu *gpu, unsigned int limit)
{
	struct sim_client clients[SIM_MAX_CLIENTS];
	unsigned int count = sim_clients(gpu, clients);
	unsigned long long mib = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (clients[i].limit == limit)
			mib += clients[i].mib;
	}
	return mib << 20;
}

unsigned long long sim_limit_used(const struct sim_gpu *gpu, const struct sim_memory_limit *limit)
{
	return taken_of_limit(gpu, (unsigned int)(limit - gpu->memory_limits) + 1);
}

static nvmlReturn_t allocate_locked(const struct sim_target *target, long long mib)
{
	unsigned int slot = sim_slot(target->gpu);
	const struct sim_client *now = sim_own_client(slot);
	if (now == NULL || (mib < 0 && (unsigned long long)-mib > now->mib))
		return NVML_ERROR_INVALID_ARGUMENT;
	struct sim_client next = *now;
	const struct sim_memory_limit *limit = sim_own_limit(target->gpu);
	next.limit = limit != NULL ? (unsigned int)(limit - target->gpu->memory_limits) + 1 : 0;
	next.mib = (unsigned long long)((long long)now->mib + mib);
	if (mib > 0) {
		unsigned long long bytes = (unsigned long long)mib << 20;
		nvmlMemory_v2_t memory = sim_memory_of(target);
		if (memory.total - memory.reserved - memory.used < bytes)
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
		/* What this process had before the limit was set counts too. */
		unsigned long long had = now->limit == next.limit ? 0 : now->mib << 20;
		if (limit != NULL && taken_of_limit(target->gpu, next.limit) + had + bytes > limit->hard)
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
	}
	return sim_register(slot, &next) == 0 ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t sim_client_allocate(nvmlDevice_t device, long long mib)
{
	struct sim_target target = {0};
	nvmlReturn_t rc = sim_enter_target("nvmlDeviceAllocate", device, &target);
	if (rc != NVML_SUCCESS)
		return rc;
	rc = sim_lock_to_read();
	if (rc != NVML_SUCCESS)
		return rc;
	rc = allocate_locked(&target, mib);
	sim_unlock();
	return rc;
}

nvmlReturn_t sim_client_limit(nvmlDevice_t device, unsigned long long *bytes)
{
	struct sim_target target = {0};
	nvmlReturn_t rc = sim_enter_target("nvmlDeviceGetOwnLimit", device, &target);
	if (rc != NVML_SUCCESS)
		return rc;
	const struct sim_memory_limit *limit = sim_own_limit(target.gpu);
	if (limit == NULL || limit->hard == NVML_DEVICE_MEMORY_LIMIT_MAX)
		return NVML_ERROR_NOT_FOUND;
	*bytes = limit->hard;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_client_kind(nvmlDevice_t device, unsigned int pid, unsigned int *kind)
{
	struct sim_target target = {0};
	struct sim_client clients[SIM_MAX_CLIENTS];
	nvmlReturn_t rc = sim_enter_target("nvmlDeviceGetProcessKind", device, &target);
	if (rc != NVML_SUCCESS)
		return rc;
	unsigned int count = sim_clients(target.gpu, clients);
	*kind = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (clients[i].pid == pid)
			*kind = clients[i].kind;
	}
	return NVML_SUCCESS;
}

/*
 * Changes of a board's instances: the lock, what a crash left behind, and who uses what.
 */
#include "client.h"
#include "mig.h"

/* A process that died between begin and end left dirty set: its files may differ from the
 * table, which is right. */
nvmlReturn_t sim_mig_begin(struct sim_gpu *gpu)
{
	nvmlReturn_t rc = sim_lock();
	if (rc != NVML_SUCCESS)
		return rc;
	if (sim_load(&gpu->mig.dirty) && sim_caps_repair(gpu) != 0) {
		sim_unlock();
		return NVML_ERROR_OPERATING_SYSTEM;
	}
	sim_store(&gpu->mig.dirty, 1);
	return NVML_SUCCESS;
}

void sim_mig_end(struct sim_gpu *gpu)
{
	sim_store(&gpu->mig.dirty, 0);
	sim_unlock();
}

/* Whether a process runs on the instance; SIM_NO_INSTANCE matches any. */
int sim_mig_clients(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	struct sim_client clients[SIM_MAX_CLIENTS];
	unsigned int count = sim_clients(gpu, clients);
	for (unsigned int i = 0; i < count; i++) {
		if (sim_client_in(&clients[i], gi, ci))
			return 1;
	}
	return 0;
}

int sim_mig_has_instances(const struct sim_gpu *gpu)
{
	for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++) {
		if (sim_load(&gpu->mig.instances[id].used))
			return 1;
	}
	return 0;
}

/* Ends all instances, as a reset does. Between begin and end. */
void sim_mig_clear(struct sim_gpu *gpu)
{
	for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++) {
		struct sim_gpu_instance *gi = &gpu->mig.instances[id];
		if (!sim_load(&gi->used))
			continue;
		for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++)
			sim_store(&gi->compute_instances[ci].used, 0);
		sim_store(&gi->used, 0);
	}
	sim_caps_repair(gpu);
}

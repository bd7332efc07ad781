/*
 * Internal interface of MIG: handles, rules and capability files.
 *
 * A change of a board's instances runs between sim_mig_begin and sim_mig_end. What readers
 * follow is one word, used: it is set last and cleared first.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "sim.h"

/* What a GPU instance handle leads to, read at one moment. */
struct sim_gi {
	struct sim_gpu *gpu;
	struct sim_gpu_instance *gi;
	const struct sim_profile *profile;
	unsigned int id;
	unsigned int start;
	unsigned int size;
};

/* What a compute instance handle leads to. */
struct sim_ci {
	struct sim_gi parent;
	struct sim_compute_instance *ci;
	unsigned int id;
};

/* Everything that live instances take from a board. */
#define SIM_ENGINES 6u
struct sim_usage {
	uint64_t units;
	unsigned int engines[SIM_ENGINES];
	unsigned int counts[SIM_MAX_PROFILES];
};

/* mig_handle.c */
int sim_mig_target(nvmlDevice_t device, struct sim_target *target);
nvmlDevice_t sim_mig_handle(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci);
nvmlGpuInstance_t sim_gi_handle(const struct sim_gpu *gpu, unsigned int id);
nvmlComputeInstance_t sim_ci_handle(const struct sim_gpu *gpu, unsigned int gi, unsigned int id);
nvmlReturn_t sim_enter_gi(const char *function, nvmlGpuInstance_t handle, struct sim_gi *gi);
nvmlReturn_t sim_enter_ci(const char *function, nvmlComputeInstance_t handle, struct sim_ci *ci);
int sim_gi_read(struct sim_gpu *gpu, unsigned int id, struct sim_gi *gi);

/* ci_profile.c, ci.c */
unsigned int sim_ci_slices(const struct sim_gi *gi, unsigned int profile);
unsigned int sim_ci_step(unsigned int slices);
unsigned int sim_ci_taken(const struct sim_gpu_instance *gi);

/* mig.c, ci_profile.c: what the questions about any device need to know of a MIG device. */
unsigned int sim_mig_index(const struct sim_target *target);
nvmlReturn_t sim_mig_by_uuid(const char *function, const char *uuid, nvmlDevice_t *device);
unsigned int sim_ci_multiprocessors(const struct sim_gi *gi, unsigned int slices);
void sim_ci_name(const struct sim_gi *gi, unsigned int slices, char *out, size_t size);

/* mig_lock.c */
nvmlReturn_t sim_mig_begin(struct sim_gpu *gpu);
void sim_mig_end(struct sim_gpu *gpu);
int sim_mig_clients(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci);
int sim_mig_has_instances(const struct sim_gpu *gpu);
void sim_mig_clear(struct sim_gpu *gpu);

/* mig_rules.c */
int sim_profile_by_id(const struct sim_mig *mig, unsigned int id);
int sim_profile_by_enum(const struct sim_mig *mig, unsigned int number);
void sim_usage_of(const struct sim_mig *mig, struct sim_usage *usage);
int sim_fits(const struct sim_mig *mig, const struct sim_usage *usage, int profile, unsigned int start);
unsigned int sim_remaining(const struct sim_mig *mig, int profile);
int sim_choose(const struct sim_mig *mig, const struct sim_usage *usage, int profile, unsigned int *start);

/* caps.c: capability files and nodes; a ci of SIM_NO_INSTANCE means the GPU instance's own. */
int sim_caps_add(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci);
void sim_caps_remove(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci);
int sim_caps_repair(const struct sim_gpu *gpu);
int sim_caps_visible(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci);
int sim_caps_config(void);

#define SIM_GI(handle, gi)                                            \
	struct sim_gi gi = {0};                                       \
	do {                                                          \
		nvmlReturn_t gi_rc = sim_enter_gi(__func__, handle, &gi); \
		if (gi_rc != NVML_SUCCESS)                            \
			return gi_rc;                                 \
	} while (0)

#define SIM_CI(handle, ci)                                            \
	struct sim_ci ci = {0};                                       \
	do {                                                          \
		nvmlReturn_t ci_rc = sim_enter_ci(__func__, handle, &ci); \
		if (ci_rc != NVML_SUCCESS)                            \
			return ci_rc;                                 \
	} while (0)

#endif

/*
 * Internal interface of the simulated libnvidia-ml.so.1.
 *
 * Every exported function starts with SIM_ENTER or SIM_DEVICE: that is where an
 * uninitialised library, an injected fault and a lost GPU answer. The rest of a function
 * reads the shared state (struct sim_node, see the Go package simstate) without a lock;
 * a mutation takes sim_lock.
 */
#ifndef SIM_H
#define SIM_H

/* Both the versioned and the unversioned names are exported, so no macro may map them. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "sim_layout.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/* Exports alias as a second name of target, which must be defined in the same file. */
#define SIM_ALIAS(alias_name, target) \
	extern __typeof__(target) alias_name __attribute__((alias(#target), visibility("default")))

/* What a handle stands for is its place in a table; what it was given out for, its epoch. */
struct nvmlDevice_st {
	uint32_t epoch;
};

/* What a device handle leads to: a board, or an instance of it. */
struct sim_target {
	struct sim_gpu *gpu;
	/* Both NULL for a whole board. */
	struct sim_gpu_instance *gi;
	struct sim_compute_instance *ci;
};

/* root.c: where this library lies. Both answer 0 on success. */
int sim_find_root(char *root, size_t size);
int sim_find_state(char *path, size_t size);
int sim_find_proc(char *path, size_t size);

/* state.c: the shared state. */
nvmlReturn_t sim_state_open(void);
struct sim_node *sim_state(void);
int sim_state_writable(void);
int sim_state_file(void);
nvmlReturn_t sim_lock(void);
nvmlReturn_t sim_lock_to_read(void);
void sim_unlock(void);

/* session.c: initialisation, visible devices and their handles. */
int sim_started(void);
int sim_immune(void);
struct sim_gpu *sim_session_gpu(unsigned int slot);
nvmlReturn_t sim_enter(const char *function);
nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu);
nvmlReturn_t sim_enter_target(const char *function, nvmlDevice_t device, struct sim_target *target);
nvmlReturn_t sim_stub(const char *function);
int sim_find_dev(char *dev, size_t size);
unsigned int sim_visible_count(void);
struct sim_gpu *sim_visible(unsigned int index);
nvmlDevice_t sim_handle(const struct sim_gpu *gpu);
struct sim_gpu *sim_handle_gpu(nvmlDevice_t device);
unsigned int sim_slot(const struct sim_gpu *gpu);

/* fault.c: injected failures and delays. */
nvmlReturn_t sim_fault(const char *function, int slot);

/* nvlink.c: whether a and b reach each other over NVLink now. */
int sim_nvlink_reaches(const struct sim_gpu *a, const struct sim_gpu *b);

/* text.c: bounded text. */
nvmlReturn_t sim_copy_text(char *out, unsigned int length, const char *text);
void sim_pci_info(const struct sim_gpu *gpu, nvmlPciInfo_t *pci);

static inline void sim_store(uint32_t *to, unsigned int value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

static inline unsigned int sim_load(const uint32_t *value)
{
	return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

/* The nvmlGpuTopologyLevel_t between two boards. */
static inline unsigned int sim_level(const struct sim_gpu *a, const struct sim_gpu *b)
{
	return (unsigned char)sim_state()->level[sim_slot(a)].to[sim_slot(b)];
}

static inline int sim_lacks(const struct sim_gpu *gpu, uint64_t feature)
{
	return (gpu->not_supported & feature) != 0;
}

#define SIM_ENTER()                                        \
	do {                                               \
		nvmlReturn_t sim_rc = sim_enter(__func__); \
		if (sim_rc != NVML_SUCCESS)                \
			return sim_rc;                     \
	} while (0)

/* Declares gpu as the board that device is; a MIG device answers NOT_SUPPORTED. */
#define SIM_DEVICE(device, gpu)                                                 \
	struct sim_gpu *gpu = NULL;                                             \
	do {                                                                    \
		nvmlReturn_t sim_rc = sim_enter_device(__func__, device, &gpu); \
		if (sim_rc != NVML_SUCCESS)                                     \
			return sim_rc;                                          \
	} while (0)

/* Declares target as what device is: a board or a MIG device. */
#define SIM_TARGET(device, target)                                                \
	struct sim_target target = {0};                                           \
	do {                                                                      \
		nvmlReturn_t sim_rc = sim_enter_target(__func__, device, &target); \
		if (sim_rc != NVML_SUCCESS)                                       \
			return sim_rc;                                            \
	} while (0)

#define SIM_REQUIRE(condition)                            \
	do {                                              \
		if (!(condition))                         \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)

#define SIM_SUPPORTED(gpu, feature)                    \
	do {                                           \
		if (sim_lacks(gpu, feature))           \
			return NVML_ERROR_NOT_SUPPORTED; \
	} while (0)

#endif

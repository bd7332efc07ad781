/*
 * Processes that have a device open.
 *
 * A process holds its place by a lock on a range of the state file, far behind its end: the
 * range says which device, as what, and how much memory. Such a lock can be taken where the
 * file is mounted read-only, as in a container; it ends with the process, however that ends;
 * and who asks for it gets the process's id as seen from where it asks.
 */
#ifndef SIM_CLIENT_H
#define SIM_CLIENT_H

#include "private.h"
#include "sim.h"

#define SIM_MAX_CLIENTS 256u

struct sim_client {
	/* 0 for a process that this one cannot see. */
	unsigned int pid;
	unsigned int place;
	/* SIM_NO_INSTANCE outside of instances. */
	unsigned int gi;
	unsigned int ci;
	enum gpusim_kind kind;
	/* The place in memory_limits of the cgroup that it counts for, plus one; 0 for none. */
	unsigned int limit;
	unsigned long long mib;
};

/* Every client of a board; answers how many there are, at most SIM_MAX_CLIENTS. */
unsigned int sim_clients(const struct sim_gpu *gpu, struct sim_client clients[SIM_MAX_CLIENTS]);
/* Whether a client runs where gi and ci say; SIM_NO_INSTANCE matches any. */
int sim_client_in(const struct sim_client *client, unsigned int gi, unsigned int ci);
/* The bytes that clients took of a board, or of a GPU instance of it. */
unsigned long long sim_clients_memory(const struct sim_gpu *gpu, unsigned int gi);

/* The bytes that the processes of the cgroup of limit took. */
unsigned long long sim_limit_used(const struct sim_gpu *gpu, const struct sim_memory_limit *limit);

/* memory.c: what a device has, and what its clients took of it. */
nvmlMemory_v2_t sim_memory_of(const struct sim_target *target);

/* cgroup.c: the limit that holds for this process on a board, NULL for none. */
const struct sim_memory_limit *sim_own_limit(const struct sim_gpu *gpu);

#endif

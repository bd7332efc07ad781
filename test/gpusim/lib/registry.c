/*
 * Who has a board open: the locks on the state file, and what was injected as clients.
 */
#define _GNU_SOURCE /* locks of open files */
#include <fcntl.h>
#include <unistd.h>

#include "registry.h"

#define BASE (1ull << 62)
#define SESSIONS (1ull << 61)
#define GPU_SHIFT 54
#define PLACE_SHIFT 46
#define GI_SHIFT 40
#define CI_SHIFT 36
#define KIND_SHIFT 33
#define LIMIT_SHIFT 27
#define MEMORY_MASK ((1ull << LIMIT_SHIFT) - 1)

/* The clients that this process is: the kernel does not tell it of its own locks. */
static struct sim_client own[SIM_MAX_GPUS];
static unsigned int is_own[SIM_MAX_GPUS];

static uint64_t gpu_start(unsigned int slot)
{
	return BASE | (uint64_t)slot << GPU_SHIFT;
}

/* Instance ids are kept plus one: 0 is a whole board. */
static uint64_t start_of(unsigned int slot, const struct sim_client *client)
{
	return gpu_start(slot) | (uint64_t)client->place << PLACE_SHIFT | (uint64_t)(client->gi + 1) << GI_SHIFT |
		(uint64_t)(client->ci + 1) << CI_SHIFT | (uint64_t)client->kind << KIND_SHIFT | (uint64_t)client->limit << LIMIT_SHIFT;
}

static struct sim_client decode(const struct flock *lock)
{
	uint64_t start = (uint64_t)lock->l_start;
	return (struct sim_client){
		.pid = lock->l_pid > 0 ? (unsigned int)lock->l_pid : 0,
		.place = (unsigned int)(start >> PLACE_SHIFT) & 0xff,
		.gi = ((unsigned int)(start >> GI_SHIFT) & 0x3f) - 1,
		.ci = ((unsigned int)(start >> CI_SHIFT) & 0xf) - 1,
		.kind = (enum gpusim_kind)((start >> KIND_SHIFT) & 0x7),
		.limit = (unsigned int)(start >> LIMIT_SHIFT) & 0x3f,
		.mib = (uint64_t)lock->l_len - 1,
	};
}

static int set_lock(short type, uint64_t start, uint64_t length)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
	return fcntl(sim_state_file(), F_SETLK, &lock);
}

struct listing {
	struct sim_client *clients;
	unsigned int count;
};

static void add(struct listing *listing, const struct sim_client *client)
{
	/* A client that changes what it is holds both ranges for a moment. */
	for (unsigned int i = 0; i < listing->count; i++) {
		if (listing->clients[i].place == client->place)
			return;
	}
	if (listing->count < SIM_MAX_CLIENTS)
		listing->clients[listing->count++] = *client;
}

/* The kernel names one lock of a range, so what lies left and right of it is asked for next. */
static void list_range(struct listing *listing, uint64_t start, uint64_t end)
{
	while (start < end) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)(end - start)};
		if (fcntl(sim_state_file(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
			return;
		struct sim_client client = decode(&lock);
		add(listing, &client);
		list_range(listing, start, (uint64_t)lock.l_start);
		start = (uint64_t)lock.l_start + (uint64_t)lock.l_len;
	}
}

/* The clients of a board that are processes; what was injected is not among them. */
unsigned int sim_registered(unsigned int slot, struct sim_client clients[SIM_MAX_CLIENTS])
{
	struct listing listing = {.clients = clients};
	list_range(&listing, gpu_start(slot), gpu_start(slot) + (1ull << GPU_SHIFT));
	if (sim_load(&is_own[slot]))
		add(&listing, &own[slot]);
	return listing.count;
}

/* Injected clients have places of their own, behind those of processes. */
unsigned int sim_clients(const struct sim_gpu *gpu, struct sim_client clients[SIM_MAX_CLIENTS])
{
	unsigned int count = sim_registered(sim_slot(gpu), clients), injected = sim_load(&gpu->process_count);
	for (unsigned int i = 0; i < injected && i < SIM_MAX_PROCESSES && count < SIM_MAX_CLIENTS; i++) {
		const struct sim_process *process = &gpu->processes[i];
		clients[count++] = (struct sim_client){
			.pid = sim_load(&process->pid), .place = SIM_MAX_CLIENTS + i, .gi = sim_load(&process->gpu_instance_id),
			.ci = sim_load(&process->compute_instance_id), .kind = GPUSIM_DIRECT,
			.mib = __atomic_load_n(&process->used_memory, __ATOMIC_ACQUIRE) >> 20,
		};
	}
	return count;
}

int sim_client_in(const struct sim_client *client, unsigned int gi, unsigned int ci)
{
	return (gi == SIM_NO_INSTANCE || client->gi == gi) && (ci == SIM_NO_INSTANCE || client->ci == ci);
}

unsigned long long sim_clients_memory(const struct sim_gpu *gpu, unsigned int gi)
{
	struct sim_client clients[SIM_MAX_CLIENTS];
	unsigned int count = sim_clients(gpu, clients);
	unsigned long long mib = 0;
	for (unsigned int i = 0; i < count; i++) {
		/* What was injected on a whole board is part of its memory_used. */
		if (gi == SIM_NO_INSTANCE && clients[i].place >= SIM_MAX_CLIENTS)
			continue;
		if (sim_client_in(&clients[i], gi, SIM_NO_INSTANCE))
			mib += clients[i].mib;
	}
	return mib << 20;
}

/* What this process is on a board; NULL if it has it not open. */
const struct sim_client *sim_own_client(unsigned int slot)
{
	return sim_load(&is_own[slot]) ? &own[slot] : NULL;
}

/* Makes this process what client says; under the lock of the state. */
int sim_register(unsigned int slot, const struct sim_client *client)
{
	if (client->mib > MEMORY_MASK)
		return -1;
	uint64_t start = start_of(slot, client), before = 0, length = 0;
	if (sim_load(&is_own[slot])) {
		before = start_of(slot, &own[slot]);
		length = own[slot].mib + 1;
	}
	if (set_lock(F_RDLCK, start, client->mib + 1) != 0)
		return -1;
	if (length > 0 && before != start)
		set_lock(F_UNLCK, before, length);
	else if (length > client->mib + 1)
		set_lock(F_UNLCK, start + client->mib + 1, length - client->mib - 1);
	own[slot] = *client;
	own[slot].pid = (unsigned int)getpid();
	sim_store(&is_own[slot], 1);
	return 0;
}

void sim_unregister(unsigned int slot)
{
	if (!sim_load(&is_own[slot]))
		return;
	set_lock(F_UNLCK, start_of(slot, &own[slot]), own[slot].mib + 1);
	sim_store(&is_own[slot], 0);
}

/*
 * A session has each board open that it sees, and a process that has a board open keeps it from
 * being reset. These locks are the open file's, not the process's: a descriptor that is closed
 * elsewhere does not drop them, and a session is not in its own way.
 */
static int session_lock(int command, short type, unsigned int slot, unsigned int count)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(SESSIONS + slot), .l_len = (off_t)count};
	return fcntl(sim_state_file(), command, &lock) == 0 && lock.l_type != F_UNLCK;
}

void sim_session_hold(unsigned int slot)
{
	session_lock(F_OFD_SETLK, F_RDLCK, slot, 1);
}

void sim_session_release(void)
{
	session_lock(F_OFD_SETLK, F_UNLCK, 0, SIM_MAX_GPUS);
}

int sim_session_elsewhere(unsigned int slot)
{
	return session_lock(F_OFD_GETLK, F_WRLCK, slot, 1);
}

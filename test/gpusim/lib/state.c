/*
 * Maps the shared state file. A mapping lives until the library is unloaded, not until
 * nvmlShutdown: a thread may sleep on it while another shuts down and starts again.
 */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>
#include <errno.h>

#include "sim.h"

static struct {
	struct sim_node *node;
	int fd;
	int writable;
	pthread_mutex_t mutation;
} state = {.fd = -1, .mutation = PTHREAD_MUTEX_INITIALIZER};

struct sim_node *sim_state(void)
{
	return __atomic_load_n(&state.node, __ATOMIC_ACQUIRE);
}

int sim_state_writable(void)
{
	return state.writable;
}

/* In a container the file is mounted read-only: readers still work. */
static int open_state(const char *path, int *writable)
{
	*writable = 1;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && (errno == EROFS || errno == EACCES || errno == EPERM)) {
		*writable = 0;
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	return fd;
}

static struct sim_node *map_state(int fd, int writable)
{
	if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(struct sim_node))
		return NULL;
	int protection = PROT_READ | (writable ? PROT_WRITE : 0);
	struct sim_node *node = mmap(NULL, sizeof(*node), protection, MAP_SHARED, fd, 0);
	if (node == MAP_FAILED)
		return NULL;
	if (node->magic == SIM_MAGIC && node->layout_version == SIM_LAYOUT_VERSION && node->size == sizeof(*node))
		return node;
	munmap(node, sizeof(*node));
	return NULL;
}

/* Whether fd is the file that is mapped already. */
static int same_instance(int fd)
{
	uint64_t id = 0;
	if (state.node == NULL || pread(fd, &id, sizeof(id), offsetof(struct sim_node, instance_id)) != (ssize_t)sizeof(id))
		return 0;
	return id == state.node->instance_id;
}

__attribute__((destructor)) static void unload(void)
{
	if (state.node != NULL)
		munmap(state.node, sizeof(*state.node));
	if (state.fd >= 0)
		close(state.fd);
}

nvmlReturn_t sim_state_open(void)
{
	char path[PATH_MAX];
	int writable = 0;
	if (sim_find_state(path, sizeof(path)) != 0)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	int fd = open_state(path, &writable);
	if (fd < 0)
		return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
	if (same_instance(fd)) {
		close(fd);
		return NVML_SUCCESS;
	}
	struct sim_node *node = map_state(fd, writable);
	if (node == NULL) {
		close(fd);
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	}
	/* The mapping of a node that was made anew stays, see above; only its descriptor goes. */
	if (state.fd >= 0)
		close(state.fd);
	state.fd = fd;
	state.writable = writable;
	__atomic_store_n(&state.node, node, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

int sim_state_file(void)
{
	return state.fd;
}

nvmlReturn_t sim_lock(void)
{
	return state.writable ? sim_lock_to_read() : NVML_ERROR_NO_PERMISSION;
}

/* Keeps changes away, also where this process may make none itself. */
nvmlReturn_t sim_lock_to_read(void)
{
	/* flock does not exclude threads that share a descriptor, hence both locks. */
	pthread_mutex_lock(&state.mutation);
	while (flock(state.fd, LOCK_EX) != 0) {
		if (errno == EINTR)
			continue;
		pthread_mutex_unlock(&state.mutation);
		return NVML_ERROR_UNKNOWN;
	}
	return NVML_SUCCESS;
}

void sim_unlock(void)
{
	if (state.writable)
		__atomic_add_fetch(&state.node->generation, 1, __ATOMIC_RELEASE);
	flock(state.fd, LOCK_UN);
	pthread_mutex_unlock(&state.mutation);
}

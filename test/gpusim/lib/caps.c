/*
 * Capability files and nodes of instances: what the kernel driver shows in proc and /dev.
 * Their minors follow from board, GPU instance and compute instance by a closed formula.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mig.h"

static unsigned int cap_minor(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	unsigned int own = 3 + 135 * sim_load(&gpu->minor) + 9 * gi;
	return ci == SIM_NO_INSTANCE ? own : own + 1 + ci;
}

static int print_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int print_path(char *path, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	int length = vsnprintf(path, PATH_MAX, format, values);
	va_end(values);
	return length < PATH_MAX ? 0 : -1;
}

static int node_path(char *path, unsigned int minor)
{
	char dev[PATH_MAX];
	if (sim_find_dev(dev, sizeof(dev)) != 0)
		return -1;
	return print_path(path, "%s/nvidia-caps/nvidia-cap%u", dev, minor);
}

/* The directory of an instance in proc; 1 where this root shows no capabilities. */
static int proc_path(char *path, const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	char proc[PATH_MAX];
	if (sim_find_proc(proc, sizeof(proc)) != 0 || print_path(path, "%s/driver/nvidia/capabilities", proc) != 0)
		return -1;
	if (access(path, F_OK) != 0)
		return 1;
	unsigned int minor = sim_load(&gpu->minor);
	if (ci == SIM_NO_INSTANCE)
		return print_path(path, "%s/driver/nvidia/capabilities/gpu%u/mig/gi%u", proc, minor, gi);
	return print_path(path, "%s/driver/nvidia/capabilities/gpu%u/mig/gi%u/ci%u", proc, minor, gi, ci);
}

static int add_node(unsigned int minor)
{
	char path[PATH_MAX];
	if (node_path(path, minor) != 0)
		return -1;
	unsigned int device = (minor & 0xff) | sim_state()->caps_major << 8 | (minor & ~0xffu) << 12;
	/* The libc call of this name has no version that old images know. */
	if (syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0444, device) == 0)
		return chmod(path, 0444);
	if (errno == EEXIST)
		return 0;
	if (errno != EPERM)
		return -1;
	/* Without the right to make devices a plain file still says that the instance is there. */
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
	return fd < 0 ? -1 : close(fd);
}

static int add_file(const char *dir, unsigned int minor)
{
	char path[PATH_MAX], text[96];
	if (mkdir(dir, 0755) != 0 && errno != EEXIST)
		return -1;
	if (print_path(path, "%s/access", dir) != 0)
		return -1;
	int length = snprintf(text, sizeof(text), "DeviceFileMinor: %u\nDeviceFileMode: %u\nDeviceFileModify: 1\n", minor, 0444u);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
	if (fd < 0)
		return -1;
	int rc = write(fd, text, (size_t)length) == length ? 0 : -1;
	return close(fd) == 0 ? rc : -1;
}

int sim_caps_add(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX];
	unsigned int minor = cap_minor(gpu, gi, ci);
	int shown = proc_path(dir, gpu, gi, ci);
	if (shown < 0 || (shown == 0 && add_file(dir, minor) != 0))
		return -1;
	return add_node(minor);
}

void sim_caps_remove(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX], path[PATH_MAX];
	if (node_path(path, cap_minor(gpu, gi, ci)) == 0)
		unlink(path);
	if (proc_path(dir, gpu, gi, ci) != 0)
		return;
	if (print_path(path, "%s/access", dir) == 0)
		unlink(path);
	rmdir(dir);
}

/* Makes files and nodes of a board what its table says. */
int sim_caps_repair(const struct sim_gpu *gpu)
{
	int rc = 0;
	for (unsigned int id = 0; id + 1 < SIM_MAX_GPU_INSTANCES; id++) {
		const struct sim_gpu_instance *gi = &gpu->mig.instances[id];
		int lives = sim_load(&gi->used) != 0;
		if (lives)
			rc |= sim_caps_add(gpu, id, SIM_NO_INSTANCE);
		for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
			if (lives && sim_load(&gi->compute_instances[ci].used))
				rc |= sim_caps_add(gpu, id, ci);
			else
				sim_caps_remove(gpu, id, ci);
		}
		if (!lives)
			sim_caps_remove(gpu, id, SIM_NO_INSTANCE);
	}
	return rc;
}

/* A container sees the instances whose nodes it was given. */
int sim_caps_visible(const struct sim_gpu *gpu, unsigned int gi, unsigned int ci)
{
	char path[PATH_MAX];
	return node_path(path, cap_minor(gpu, gi, ci)) == 0 && access(path, F_OK) == 0;
}

/* The node whose holder may configure MIG. */
int sim_caps_config(void)
{
	char path[PATH_MAX];
	return node_path(path, 1) == 0 && access(path, F_OK) == 0;
}

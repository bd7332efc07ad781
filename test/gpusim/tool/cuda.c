#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cuda.h"

const char *tool_cuda_name(int code)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {
		{CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{CUDA_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
		{CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
		{CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		{CUDA_MPS_CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED"},
		{CUDA_MPS_RPC_FAILURE, "CUDA_ERROR_MPS_RPC_FAILURE"},
		{CUDA_MPS_SERVER_NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY"},
		{CUDA_MPS_MAX_CLIENTS_REACHED, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"},
		{CUDA_MPS_CLIENT_TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].code == code)
			return names[i].name;
	}
	return "CUDA_ERROR_UNKNOWN";
}

static int fill(struct tool_device *out, nvmlDevice_t board, nvmlDevice_t device)
{
	out->device = device;
	return NVML(nvmlDeviceGetMinorNumber, board, &out->minor) == NVML_SUCCESS &&
		NVML(nvmlDeviceGetUUID, device, out->uuid, sizeof(out->uuid)) == NVML_SUCCESS;
}

struct enumeration {
	struct tool_device *list;
	unsigned int count;
};

static void add_mig_devices(struct enumeration *migs, nvmlDevice_t board)
{
	unsigned int most = 0;
	NVML(nvmlDeviceGetMaxMigDeviceCount, board, &most);
	for (unsigned int i = 0; i < most && migs->count < TOOL_MAX_GPUS; i++) {
		nvmlDevice_t mig;
		if (NVML(nvmlDeviceGetMigDeviceHandleByIndex, board, i, &mig) == NVML_SUCCESS)
			migs->count += (unsigned int)fill(&migs->list[migs->count], board, mig);
	}
}

/* What this process's nodes show: boards that compute themselves, and MIG devices. */
static void enumerate(struct enumeration *boards, struct enumeration *migs)
{
	unsigned int count = 0;
	NVML(nvmlDeviceGetCount_v2, &count);
	for (unsigned int i = 0; i < count && boards->count < TOOL_MAX_GPUS; i++) {
		nvmlDevice_t board;
		unsigned int mode = 0, pending = 0;
		if (NVML(nvmlDeviceGetHandleByIndex_v2, i, &board) != NVML_SUCCESS)
			continue;
		if (NVML(nvmlDeviceGetMigMode, board, &mode, &pending) == NVML_SUCCESS && mode)
			add_mig_devices(migs, board);
		else
			boards->count += (unsigned int)fill(&boards->list[boards->count], board, board);
	}
}

/* The device that one entry of CUDA_VISIBLE_DEVICES names: a number, or the start of a UUID. */
static const struct tool_device *named(const char *name, size_t length, const struct enumeration *boards, const struct enumeration *migs)
{
	char *end = NULL;
	unsigned long index = strtoul(name, &end, 10);
	if (length > 0 && end == name + length)
		return index < boards->count ? &boards->list[index] : NULL;
	if (length < 5)
		return NULL;
	const struct enumeration *both[] = {boards, migs};
	for (size_t e = 0; e < 2; e++) {
		for (unsigned int i = 0; i < both[e]->count; i++) {
			if (strncasecmp(both[e]->list[i].uuid, name, length) == 0)
				return &both[e]->list[i];
		}
	}
	return NULL;
}

unsigned int tool_cuda_devices(struct tool_device devices[TOOL_MAX_GPUS])
{
	static struct tool_device board_list[TOOL_MAX_GPUS], mig_list[TOOL_MAX_GPUS];
	struct enumeration boards = {.list = board_list}, migs = {.list = mig_list};
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	unsigned int count = 0;
	enumerate(&boards, &migs);
	if (visible == NULL) {
		/* A program computes on one MIG device, and then on no other device. */
		const struct enumeration *all = migs.count > 0 ? &migs : &boards;
		count = migs.count > 0 ? 1 : boards.count;
		memcpy(devices, all->list, count * sizeof(devices[0]));
		return count;
	}
	/* An entry that names nothing ends the list. */
	while (*visible != '\0' && count < TOOL_MAX_GPUS) {
		size_t length = strcspn(visible, ",");
		const struct tool_device *found = named(visible, length, &boards, &migs);
		if (found == NULL)
			break;
		devices[count++] = *found;
		visible += length + (visible[length] == ',');
	}
	return count;
}

/* Without hardware an open that is allowed ends in ENXIO. */
static int can_open(const char *directory, const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

const char *tool_open_nodes(const struct tool_device *device, char *reason, size_t size)
{
	char directory[PATH_MAX - 64], own[32];
	const struct gpusim_functions *functions = tool_private();
	if (functions == NULL || functions->nodes(directory, sizeof(directory)) != NVML_SUCCESS)
		return "no directory of device nodes";
	snprintf(own, sizeof(own), "nvidia%u", device->minor);
	const char *const names[] = {"nvidiactl", "nvidia-uvm", own};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (can_open(directory, names[i]))
			continue;
		snprintf(reason, size, "open %.64s: %s", names[i], strerror(errno));
		return reason;
	}
	return NULL;
}

long long tool_parse_memory(const char *text, size_t length)
{
	static const struct {
		const char *unit;
		unsigned int shift;
	} units[] = {{"", 0}, {"M", 0}, {"MB", 0}, {"G", 10}, {"GB", 10}};
	char *end = NULL;
	errno = 0;
	if (length == 0 || *text < '0' || *text > '9')
		return -1;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno != 0 || value > 1u << 26 || end > text + length)
		return -1;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		size_t rest = (size_t)(text + length - end);
		if (rest == strlen(units[i].unit) && strncasecmp(end, units[i].unit, rest) == 0)
			return (long long)(value << units[i].shift);
	}
	return -1;
}

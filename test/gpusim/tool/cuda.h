/*
 * Devices as CUDA counts them for a program: what its nodes and CUDA_VISIBLE_DEVICES show.
 */
#ifndef TOOL_CUDA_H
#define TOOL_CUDA_H

#include "tool.h"

/* CUresult numbers. */
enum tool_cuda_error {
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_DEVICE_UNAVAILABLE = 46,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_MPS_CONNECTION_FAILED = 805,
	CUDA_MPS_RPC_FAILURE = 806,
	CUDA_MPS_SERVER_NOT_READY = 807,
	CUDA_MPS_MAX_CLIENTS_REACHED = 808,
	CUDA_MPS_CLIENT_TERMINATED = 810,
	CUDA_UNKNOWN = 999,
};

struct tool_device {
	nvmlDevice_t device;
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	unsigned int minor;
};

const char *tool_cuda_name(int code);
/* Fills devices in CUDA's order; answers how many. */
unsigned int tool_cuda_devices(struct tool_device devices[TOOL_MAX_GPUS]);
/* Opens the device nodes that a program on device needs; NULL, or what failed. */
const char *tool_open_nodes(const struct tool_device *device, char *reason, size_t size);
/* MiB of a text such as 512M or 2G; without a unit it is MiB. -1 if it is none. */
long long tool_parse_memory(const char *text, size_t length);

#endif

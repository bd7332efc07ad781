/*
 * What the driver's own tools can do and nvml.h does not say: the table behind
 * nvmlInternalGetExportTable. The tools and the library are built from this header.
 */
#ifndef SIM_PRIVATE_H
#define SIM_PRIVATE_H

#include <nvml.h>
#include <stddef.h>

#define GPUSIM_TABLE "gpusim-functions"

/* As what a process opens a device. */
enum gpusim_kind {
	/* Its own context, or by way of a server that has the device open. */
	GPUSIM_DIRECT = 1,
	GPUSIM_SERVER = 2,
	GPUSIM_CLIENT = 3,
};

struct gpusim_functions {
	size_t size;
	/* Ends what a reset ends; IN_USE while there are clients, or sessions of other processes. */
	nvmlReturn_t (*reset)(nvmlDevice_t device);
	/* What was injected for a step of a tool; device may be NULL. */
	nvmlReturn_t (*fault)(const char *step, const nvmlDevice_t *device);
	/* 0 default, 1 short, 2 medium, 3 long. */
	nvmlReturn_t (*get_time_slice)(nvmlDevice_t device, unsigned int *slice);
	nvmlReturn_t (*set_time_slice)(nvmlDevice_t device, unsigned int slice);
	/* Makes this process a client of a device until close or its end. IN_USE: the compute
	 * mode does not admit it. */
	nvmlReturn_t (*open)(nvmlDevice_t device, enum gpusim_kind kind);
	nvmlReturn_t (*close)(nvmlDevice_t device);
	/* Takes (or, negative, gives back) device memory. INSUFFICIENT_RESOURCES: the device or
	 * the memory limit of this process's cgroup has no room. */
	nvmlReturn_t (*allocate)(nvmlDevice_t device, long long mib);
	/* The bytes that this process's cgroup may have of a device; NOT_FOUND without a limit. */
	nvmlReturn_t (*limit)(nvmlDevice_t device, unsigned long long *bytes);
	/* The kind of a client process of a device; 0 if it is none. */
	nvmlReturn_t (*kind)(nvmlDevice_t device, unsigned int pid, unsigned int *kind);
	/* The directory of device nodes. */
	nvmlReturn_t (*nodes)(char *path, size_t size);
};

#endif

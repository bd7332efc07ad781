/*
 * Loads the library at run time, as a program must that also has something to say where
 * no driver is installed.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "smi.h"

#if defined(__x86_64__)
#define TRIPLET "x86_64-linux-gnu"
#define BASE "GLIBC_2.2.5"
#else
#define TRIPLET "aarch64-linux-gnu"
#define BASE "GLIBC_2.17"
#endif

/* Declared here and bound to their oldest version, for images with an old libc. */
extern void *dlopen(const char *file, int mode);
extern void *dlsym(void *handle, const char *name);
__asm__(".symver dlopen, dlopen@" BASE);
__asm__(".symver dlsym, dlsym@" BASE);
#define LOAD_NOW 2

struct smi_nvml nvml;

/* Under a driver root on a host the library lies beside the tool, not on the search path. */
static void *open_beside(void)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (length <= 0)
		return NULL;
	path[length] = '\0';
	static const char tail[] = "/usr/bin/nvidia-smi";
	size_t root = (size_t)length - (sizeof(tail) - 1);
	if ((size_t)length < sizeof(tail) - 1 || strcmp(path + root, tail) != 0)
		return NULL;
	static const char library[] = "/usr/lib/" TRIPLET "/libnvidia-ml.so.1";
	if (root + sizeof(library) > sizeof(path))
		return NULL;
	memcpy(path + root, library, sizeof(library));
	return dlopen(path, LOAD_NOW);
}

int smi_load(void)
{
	void *library = open_beside();
	if (library == NULL)
		library = dlopen("libnvidia-ml.so.1", LOAD_NOW);
	if (library == NULL) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"
			"Is the driver installed, and its library directory on the search path?\n");
		return SMI_NO_LIBRARY;
	}
#define X(name)                                      \
	do {                                         \
		void *symbol = dlsym(library, #name); \
		memcpy(&nvml.name, &symbol, sizeof(symbol)); \
	} while (0);
	SMI_FUNCTIONS(X)
#undef X
	return 0;
}

const char *smi_error(nvmlReturn_t rc)
{
	return nvml.nvmlErrorString != NULL ? nvml.nvmlErrorString(rc) : "Unknown Error";
}

int smi_start(void)
{
	nvmlReturn_t rc = NVML(nvmlInit_v2);
	if (rc == NVML_SUCCESS)
		return 0;
	printf("Failed to initialize NVML: %s\n", smi_error(rc));
	if (rc == NVML_ERROR_DRIVER_NOT_LOADED)
		printf("NVIDIA-SMI couldn't communicate with the NVIDIA driver: is it installed and running, and is /dev/nvidiactl there?\n");
	return (int)(rc < 256 ? rc : 255);
}

/*
 * Loads the library at run time, as a program must that also has something to say where
 * no driver is installed.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

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

struct tool_nvml nvml;

/* Under a driver root on a host the library lies below the same root, not on the search path. */
static void *open_beside(void)
{
	static const char library[] = "/usr/lib/" TRIPLET "/libnvidia-ml.so.1";
	char path[PATH_MAX + sizeof(library)];
	if (tool_directory(path, PATH_MAX) != 0)
		return NULL;
	char *root = NULL;
	for (char *at = strstr(path, "/usr/"); at != NULL; at = strstr(at + 1, "/usr/"))
		root = at;
	if (root == NULL)
		return NULL;
	memcpy(root, library, sizeof(library));
	return dlopen(path, LOAD_NOW);
}

int tool_directory(char *path, size_t size)
{
	ssize_t length = readlink("/proc/self/exe", path, size - 1);
	if (length <= 0)
		return -1;
	path[length] = '\0';
	char *slash = strrchr(path, '/');
	if (slash == NULL)
		return -1;
	*slash = '\0';
	return 0;
}

int tool_load(void)
{
	void *library = open_beside();
	if (library == NULL)
		library = dlopen("libnvidia-ml.so.1", LOAD_NOW);
	if (library == NULL)
		return -1;
#define X(name)                                      \
	do {                                         \
		void *symbol = dlsym(library, #name); \
		memcpy(&nvml.name, &symbol, sizeof(symbol)); \
	} while (0);
	TOOL_FUNCTIONS(X)
#undef X
	return 0;
}

const char *tool_error(nvmlReturn_t rc)
{
	return nvml.nvmlErrorString != NULL ? nvml.nvmlErrorString(rc) : "Unknown Error";
}

const struct gpusim_functions *tool_private(void)
{
	const void *table = NULL;
	const struct gpusim_functions *functions;
	if (NVML(nvmlInternalGetExportTable, &table, GPUSIM_TABLE) != NVML_SUCCESS)
		return NULL;
	functions = table;
	return functions->size == sizeof(*functions) ? functions : NULL;
}

nvmlReturn_t tool_step(const char *step, const nvmlDevice_t *device)
{
	const struct gpusim_functions *functions = tool_private();
	return functions != NULL ? functions->fault(step, device) : NVML_SUCCESS;
}

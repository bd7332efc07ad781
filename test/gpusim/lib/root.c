/*
 * Finds the driver root and the state file from the place of this library, so that the
 * same file works on the host, under a driver root, and injected into a container.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include <dirent.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#if defined(__aarch64__)
#define TRIPLET "aarch64-linux-gnu"
#else
#define TRIPLET "x86_64-linux-gnu"
#endif

#define STATE_PREFIX "libnvidia-simstate.so."

struct search {
	uintptr_t address;
	char path[PATH_MAX];
	int found;
};

static int contains_address(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + header->p_vaddr;
		if (header->p_type == PT_LOAD && address >= start && address - start < header->p_memsz)
			return 1;
	}
	return 0;
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	(void)size;
	if (!contains_address(info, search->address) || info->dlpi_name == NULL)
		return 0;
	search->found = realpath(info->dlpi_name, search->path) != NULL;
	return 1;
}

/* Asks the loader, not /proc/self/maps: a chroot may have no /proc. */
static int own_path(char *path, size_t size)
{
	struct search search = {.address = (uintptr_t)&own_path};
	dl_iterate_phdr(visit_object, &search);
	if (!search.found || strlen(search.path) >= size)
		return -1;
	strcpy(path, search.path);
	return 0;
}

int sim_find_root(char *root, size_t size)
{
	const char *given = getenv("GPUSIM_ROOT");
	if (given != NULL && *given != '\0')
		return snprintf(root, size, "%s", given) < (int)size ? 0 : -1;
	if (own_path(root, size) != 0)
		return -1;
	/* The last match wins: the root itself may lie below a directory of this name. */
	static const char *const marks[] = {"/usr/lib/", "/usr/lib64/", "/lib64/", "/lib/"};
	for (size_t m = 0; m < sizeof(marks) / sizeof(marks[0]); m++) {
		char *last = NULL;
		for (char *at = strstr(root, marks[m]); at != NULL; at = strstr(at + 1, marks[m]))
			last = at;
		if (last != NULL) {
			*last = '\0';
			return 0;
		}
	}
	return -1;
}

/* Takes any state file of the directory where the library's own name carries no version. */
static int scan_for_state(const char *dir, char *path, size_t size)
{
	DIR *stream = opendir(dir);
	if (stream == NULL)
		return -1;
	int rc = -1;
	for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
		if (strncmp(entry->d_name, STATE_PREFIX, sizeof(STATE_PREFIX) - 1) != 0)
			continue;
		if (snprintf(path, size, "%s/%s", dir, entry->d_name) < (int)size)
			rc = 0;
	}
	closedir(stream);
	return rc;
}

/* Proc lies below the driver root, as in the container of a driver. */
int sim_find_proc(char *path, size_t size)
{
	char root[PATH_MAX];
	if (sim_find_root(root, sizeof(root)) != 0)
		return -1;
	return snprintf(path, size, "%s/proc", root) < (int)size ? 0 : -1;
}

int sim_find_state(char *path, size_t size)
{
	static const char library[] = "/libnvidia-ml.so.";
	char own[PATH_MAX];
	const char *given = getenv("GPUSIM_STATE");
	if (given != NULL && *given != '\0')
		return snprintf(path, size, "%s", given) < (int)size ? 0 : -1;
	const char *root = getenv("GPUSIM_ROOT");
	if (root != NULL && *root != '\0' && snprintf(own, sizeof(own), "%s/usr/lib/" TRIPLET, root) < (int)sizeof(own))
		return scan_for_state(own, path, size);
	if (own_path(own, sizeof(own)) != 0)
		return -1;
	char *slash = strrchr(own, '/');
	if (slash == NULL)
		return -1;
	if (strncmp(slash, library, sizeof(library) - 1) == 0) {
		const char *version = slash + sizeof(library) - 1;
		int length = snprintf(path, size, "%.*s/" STATE_PREFIX "%s", (int)(slash - own), own, version);
		if (length < (int)size && access(path, F_OK) == 0)
			return 0;
	}
	*slash = '\0';
	return scan_for_state(own, path, size);
}

/*
 * What the control daemon asks and tells a server.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server.h"

__attribute__((format(printf, 2, 3))) static void print(char answer[MPS_PACKET], const char *format, ...)
{
	size_t length = strlen(answer);
	va_list args;
	va_start(args, format);
	vsnprintf(answer + length, MPS_PACKET - length, format, args);
	va_end(args);
}

static void list_clients(const struct server *server, char answer[MPS_PACKET])
{
	for (unsigned int i = 0; i < server->client_count; i++)
		print(answer, "%d\n", (int)server->clients[i].pid);
}

static void list_devices(const struct server *server, char answer[MPS_PACKET])
{
	for (unsigned int d = 0; d < server->device_count; d++) {
		print(answer, "Device %s:\n", server->devices[d].uuid);
		list_clients(server, answer);
	}
}

static void command_of(pid_t pid, char *out, size_t size)
{
	char path[64];
	snprintf(out, size, "[Not Found]");
	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return;
	size_t length = fread(out, 1, size - 1, file);
	if (length > 0)
		out[length] = '\0';
	fclose(file);
}

static void list_processes(const struct server *server, char answer[MPS_PACKET])
{
	for (unsigned int i = 0; i < server->client_count; i++) {
		const struct client *client = &server->clients[i];
		char name[64];
		command_of(client->pid, name, sizeof(name));
		for (unsigned int d = 0; d < server->device_count; d++)
			print(answer, "%-9d %-5u %-9d %-20.17s %-12s %s\n", (int)client->pid, client->id, (int)getpid(), server->devices[d].uuid, "-", name);
	}
}

static void terminate(struct server *server, long pid, char answer[MPS_PACKET])
{
	for (unsigned int i = 0; i < server->client_count; i++) {
		if (server->clients[i].pid != (pid_t)pid)
			continue;
		mps_send(server->clients[i].socket, "error 810 terminated by the control daemon", -1);
		server_end(server, i, "was terminated");
		return;
	}
	print(answer, "Cannot find client with PID %ld\n", pid);
}

void server_answer(struct server *server, const char *question, char answer[MPS_PACKET])
{
	unsigned int device;
	long long mib;
	answer[0] = '\0';
	if (strcmp(question, "clients") == 0)
		list_clients(server, answer);
	else if (strcmp(question, "devices") == 0)
		list_devices(server, answer);
	else if (strcmp(question, "ps") == 0)
		list_processes(server, answer);
	else if (strcmp(question, "drain") == 0)
		server->draining = 1;
	else if (strncmp(question, "terminate ", 10) == 0)
		terminate(server, strtol(question + 10, NULL, 10), answer);
	else if (strcmp(question, "get percentage") == 0)
		print(answer, "%.1f\n", server->percentage);
	else if (sscanf(question, "get limit %u", &device) == 1)
		print(answer, "%lld\n", device < server->device_count ? server->limits[device] : NO_LIMIT);
	else if (sscanf(question, "limit %u %lld", &device, &mib) == 2 && device < server->device_count)
		server->limits[device] = mib;
	else if (strncmp(question, "percentage ", 11) == 0)
		server->percentage = strtod(question + 11, NULL);
}

/*
 * The server: it has the devices open for its clients, and holds them to their limits.
 */
#ifndef MPSSRV_SERVER_H
#define MPSSRV_SERVER_H

#include <sys/types.h>

#include "cuda.h"
#include "wire.h"

#define NO_LIMIT (-1ll)

struct client {
	int socket;
	pid_t pid;
	uid_t uid;
	unsigned int id;
	/* Per cent of a device, of what the client's environment asks for. */
	double wish;
	/* MiB by device: what the environment allows, and what it has. */
	long long allowed[TOOL_MAX_GPUS];
	long long used[TOOL_MAX_GPUS];
	int attached;
};

struct server {
	int control;
	int signals;
	double percentage;
	int draining;
	unsigned int next_id;
	unsigned int device_count;
	struct tool_device devices[TOOL_MAX_GPUS];
	long long limits[TOOL_MAX_GPUS];
	unsigned int client_count;
	struct client clients[MPS_MAX_CLIENTS];
	char shared[64];
};

/* client.c */
void server_accept(struct server *server, int socket);
/* Reads what a client says; its end takes it off the list. */
void server_hear(struct server *server, unsigned int place);
void server_end(struct server *server, unsigned int place, const char *why);
long long server_limit(const struct server *server, const struct client *client, unsigned int device);

/* answer.c: answers the control daemon. */
void server_answer(struct server *server, const char *question, char answer[MPS_PACKET]);

#endif

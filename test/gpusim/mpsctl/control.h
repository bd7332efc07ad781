/*
 * The control daemon: it starts servers, hands programs on to them, and obeys commands.
 */
#ifndef MPSCTL_CONTROL_H
#define MPSCTL_CONTROL_H

#include <sys/types.h>

#include "wire.h"

#define MAX_SERVERS 8u
#define MAX_DEVICES 64u
#define MAX_WAITING 128u
#define MAX_SHELLS 16u
#define SERVER_TIMEOUT_MS 5000
#define NO_LIMIT (-1ll)

struct server {
	/* 0 in an entry that is free. */
	pid_t pid;
	uid_t uid;
	int socket;
	int ready;
	/* Takes no more clients. */
	int draining;
};

/* A program that waits for a server. */
struct waiting {
	int socket;
	uid_t uid;
};

struct control {
	int multi_user;
	/* What the next server starts with: per cent, and MiB by device or NO_LIMIT. */
	double percentage;
	long long limits[MAX_DEVICES];
	struct server servers[MAX_SERVERS];
	struct waiting waiting[MAX_WAITING];
	unsigned int waiting_count;
	/* Descriptors of command shells, -1 in free places. */
	int shells[MAX_SHELLS];
	int quitting;
	/* When to end clients while quitting; 0 for never. */
	long long deadline_ms;
};

/* servers.c */
struct server *control_server(struct control *control, pid_t pid);
struct server *control_start(struct control *control, uid_t uid);
void control_attach(struct control *control, int socket);
void control_serve_waiting(struct control *control);
/* Reads what a server says by itself: that it is ready, or (its end) that it is gone. */
void control_hear(struct control *control, struct server *server);
void control_drain(struct control *control, int force);
unsigned int control_server_count(const struct control *control);
/* Asks a server; an empty answer where it does not give one. */
const char *control_ask(struct server *server, const char *question, char answer[MPS_PACKET]);

/* commands.c: writes what the command prints. */
void control_command(struct control *control, char *line, char answer[MPS_PACKET]);

/* daemon.c, shell.c: both answer the exit code. */
int control_daemon(int foreground, int multi_user);
int control_shell(void);
long long control_now_ms(void);

#endif

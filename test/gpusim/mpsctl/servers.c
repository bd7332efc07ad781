/*
 * The servers of a control daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "tool.h"

struct server *control_server(struct control *control, pid_t pid)
{
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		if (control->servers[i].pid != 0 && control->servers[i].pid == pid)
			return &control->servers[i];
	}
	return NULL;
}

unsigned int control_server_count(const struct control *control)
{
	unsigned int count = 0;
	for (unsigned int i = 0; i < MAX_SERVERS; i++)
		count += control->servers[i].pid != 0;
	return count;
}

static void run_server(int socket)
{
	char directory[PATH_MAX - 32], program[PATH_MAX], number[16];
	if (tool_directory(directory, sizeof(directory)) != 0)
		_exit(127);
	snprintf(program, sizeof(program), "%s/nvidia-cuda-mps-server", directory);
	snprintf(number, sizeof(number), "%d", socket);
	fcntl(socket, F_SETFD, 0);
	setenv("GPUSIM_MPS_SOCKET", number, 1);
	execl(program, "nvidia-cuda-mps-server", (char *)NULL);
	_exit(127);
}

struct server *control_start(struct control *control, uid_t uid)
{
	int sockets[2];
	struct server *server = NULL;
	for (unsigned int i = 0; i < MAX_SERVERS && server == NULL; i++) {
		if (control->servers[i].pid == 0)
			server = &control->servers[i];
	}
	if (server == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
		return NULL;
	pid_t pid = fork();
	if (pid == 0)
		run_server(sockets[1]);
	close(sockets[1]);
	if (pid < 0) {
		close(sockets[0]);
		return NULL;
	}
	*server = (struct server){.pid = pid, .uid = uid, .socket = sockets[0]};
	mps_log("Starting new server %d for user %u", (int)pid, uid);
	return server;
}

const char *control_ask(struct server *server, const char *question, char answer[MPS_PACKET])
{
	if (!server->ready || mps_ask(server->socket, question, answer, SERVER_TIMEOUT_MS) != 0)
		answer[0] = '\0';
	return answer;
}

static void configure(struct control *control, struct server *server)
{
	char question[128], answer[MPS_PACKET];
	snprintf(question, sizeof(question), "percentage %.4f", control->percentage);
	control_ask(server, question, answer);
	for (unsigned int device = 0; device < MAX_DEVICES; device++) {
		if (control->limits[device] == NO_LIMIT)
			continue;
		snprintf(question, sizeof(question), "limit %u %lld", device, control->limits[device]);
		control_ask(server, question, answer);
	}
}

static void gone(struct control *control, struct server *server)
{
	int status = 0, failed = !server->ready;
	close(server->socket);
	while (waitpid(server->pid, &status, 0) < 0 && errno == EINTR)
		;
	mps_log("Server %d exited with status %d", (int)server->pid, status);
	uid_t uid = server->uid;
	server->pid = 0;
	/* Whoever waits for a server that cannot start must not wait for ever. */
	for (unsigned int i = 0; failed && i < control->waiting_count;) {
		struct waiting *waiting = &control->waiting[i];
		if (!control->multi_user && waiting->uid != uid) {
			i++;
			continue;
		}
		mps_refuse(waiting->socket, "error 807 the server failed to start");
		*waiting = control->waiting[--control->waiting_count];
	}
	control_serve_waiting(control);
}

void control_hear(struct control *control, struct server *server)
{
	char text[MPS_PACKET];
	if (mps_receive(server->socket, text, NULL) <= 0) {
		gone(control, server);
		return;
	}
	if (server->ready)
		return;
	if (strcmp(text, "ready") != 0) {
		mps_log("Server %d failed to start: %s", (int)server->pid, text);
		return;
	}
	server->ready = 1;
	configure(control, server);
	mps_log("Server %d is ready", (int)server->pid);
	control_serve_waiting(control);
}

/* The server for a program of user uid. Where another user's is in the way it takes no more
 * clients, and ends when it has none. */
static struct server *server_for(struct control *control, uid_t uid)
{
	struct server *other = NULL;
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		struct server *server = &control->servers[i];
		if (server->pid == 0)
			continue;
		if (!server->draining && (control->multi_user || server->uid == uid))
			return server;
		other = server;
	}
	if (other == NULL)
		return control_start(control, control->multi_user ? 0 : uid);
	if (!other->draining && other->ready) {
		char answer[MPS_PACKET];
		other->draining = 1;
		control_ask(other, "drain", answer);
	}
	return NULL;
}

/* Whether the program is served, and its socket done with. */
static int serve(struct control *control, const struct waiting *waiting)
{
	struct server *server = server_for(control, waiting->uid);
	if (server == NULL || !server->ready)
		return 0;
	mps_log("User %u is served by server %d", waiting->uid, (int)server->pid);
	mps_send(server->socket, "client", waiting->socket);
	close(waiting->socket);
	return 1;
}

void control_serve_waiting(struct control *control)
{
	unsigned int kept = 0;
	for (unsigned int i = 0; i < control->waiting_count; i++) {
		if (control->quitting) {
			mps_refuse(control->waiting[i].socket, "error 807 the control daemon is ending");
			continue;
		}
		if (!serve(control, &control->waiting[i]))
			control->waiting[kept++] = control->waiting[i];
	}
	control->waiting_count = kept;
}

void control_attach(struct control *control, int socket)
{
	pid_t pid;
	struct waiting waiting = {.socket = socket};
	mps_peer(socket, &pid, &waiting.uid);
	mps_log("Accepting connection of process %d of user %u", (int)pid, waiting.uid);
	if (control->quitting || control->waiting_count == MAX_WAITING) {
		mps_refuse(socket, "error 807 the control daemon takes no more clients");
		return;
	}
	control->waiting[control->waiting_count++] = waiting;
	control_serve_waiting(control);
}

void control_drain(struct control *control, int force)
{
	char answer[MPS_PACKET];
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		struct server *server = &control->servers[i];
		if (server->pid == 0)
			continue;
		server->draining = 1;
		/* One that is not up yet has nobody to wait for. */
		if (!server->ready || force)
			kill(server->pid, SIGTERM);
		else
			control_ask(server, "drain", answer);
	}
	control_serve_waiting(control);
}

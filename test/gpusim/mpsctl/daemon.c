/*
 * The daemon itself: one loop over everything that speaks to it.
 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "tool.h"

struct daemon {
	struct control control;
	int lock;
	/* Told when the daemon listens; -1 in the foreground. */
	int parent;
	int signals;
	int programs;
	int commands;
};

long long control_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A daemon that died without a word leaves its files, not its lock. */
static int take_directory(struct daemon *daemon)
{
	char path[4096];
	mkdir(mps_pipe_directory(), 0755);
	snprintf(path, sizeof(path), "%s/control_lock", mps_pipe_directory());
	daemon->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (daemon->lock < 0) {
		printf("Cannot create %s: %s\n", path, strerror(errno));
		return -1;
	}
	if (flock(daemon->lock, LOCK_EX | LOCK_NB) != 0) {
		printf("An instance of this daemon is already running\n");
		return -1;
	}
	if (mps_log_open("control.log", "Control") != 0) {
		printf("Cannot open the log in %s: %s\n", mps_log_directory(), strerror(errno));
		return -1;
	}
	return 0;
}

static void write_pid(void)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", mps_pipe_directory());
	FILE *file = fopen(path, "we");
	if (file == NULL)
		return;
	fprintf(file, "%d\n", (int)getpid());
	fclose(file);
}

static void remove_files(void)
{
	static const char *const names[] = {MPS_CONTROL, MPS_PRIVILEGED, "nvidia-cuda-mps-control.pid"};
	char path[4096];
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", mps_pipe_directory(), names[i]);
		unlink(path);
	}
}

/* What was injected to end the daemon: it goes without a word. */
static void maybe_crash(void)
{
	nvmlReturn_t rc = tool_step("nvidia-cuda-mps-control:crash", NULL);
	if (rc != NVML_SUCCESS && rc != NVML_ERROR_UNINITIALIZED)
		_exit(139);
}

static void close_shell(struct daemon *daemon, unsigned int place)
{
	close(daemon->control.shells[place]);
	daemon->control.shells[place] = -1;
}

static void hear_shell(struct daemon *daemon, unsigned int place)
{
	char line[MPS_PACKET], answer[MPS_PACKET];
	if (mps_receive(daemon->control.shells[place], line, NULL) <= 0) {
		close_shell(daemon, place);
		return;
	}
	control_command(&daemon->control, line, answer);
	/* Who asked it to end sees that in the end of the connection. */
	if (daemon->control.quitting)
		return;
	if (mps_send(daemon->control.shells[place], answer, -1) != 0)
		close_shell(daemon, place);
	maybe_crash();
}

static void accept_shell(struct daemon *daemon)
{
	int socket = mps_accept(daemon->commands);
	for (unsigned int i = 0; socket >= 0 && i < MAX_SHELLS; i++) {
		if (daemon->control.shells[i] >= 0)
			continue;
		daemon->control.shells[i] = socket;
		return;
	}
	if (socket >= 0)
		close(socket);
}

/* Where each thing lies among those that are waited for. */
enum {
	AT_SIGNALS,
	AT_PROGRAMS,
	AT_COMMANDS,
	AT_SHELLS,
	AT_SERVERS = AT_SHELLS + MAX_SHELLS,
	AT_END = AT_SERVERS + MAX_SERVERS,
};

static void watch(const struct daemon *daemon, struct pollfd at[AT_END])
{
	at[AT_SIGNALS].fd = daemon->signals;
	at[AT_PROGRAMS].fd = daemon->programs;
	at[AT_COMMANDS].fd = daemon->commands;
	for (unsigned int i = 0; i < MAX_SHELLS; i++)
		at[AT_SHELLS + i].fd = daemon->control.shells[i];
	for (unsigned int i = 0; i < MAX_SERVERS; i++)
		at[AT_SERVERS + i].fd = daemon->control.servers[i].pid != 0 ? daemon->control.servers[i].socket : -1;
	for (unsigned int i = 0; i < AT_END; i++) {
		at[i].events = POLLIN;
		at[i].revents = 0;
	}
}

static void handle(struct daemon *daemon, const struct pollfd at[AT_END])
{
	/* Ends of servers first: who comes next must not be handed to a dead one. */
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		if (at[AT_SERVERS + i].revents != 0)
			control_hear(&daemon->control, &daemon->control.servers[i]);
	}
	for (unsigned int i = 0; i < MAX_SHELLS; i++) {
		if (at[AT_SHELLS + i].revents != 0 && daemon->control.shells[i] >= 0)
			hear_shell(daemon, i);
	}
	if (at[AT_COMMANDS].revents != 0)
		accept_shell(daemon);
	if (at[AT_PROGRAMS].revents != 0) {
		int socket = mps_accept(daemon->programs);
		if (socket >= 0)
			control_attach(&daemon->control, socket);
		maybe_crash();
	}
	if (at[AT_SIGNALS].revents != 0) {
		mps_log("Told to end by a signal");
		daemon->control.quitting = 1;
		control_drain(&daemon->control, 1);
	}
}

static int loop(struct daemon *daemon)
{
	struct pollfd at[AT_END];
	while (!daemon->control.quitting || control_server_count(&daemon->control) > 0) {
		long long wait_ms = -1;
		if (daemon->control.deadline_ms > 0) {
			wait_ms = daemon->control.deadline_ms - control_now_ms();
			if (wait_ms <= 0) {
				control_drain(&daemon->control, 1);
				daemon->control.deadline_ms = 0;
				wait_ms = -1;
			}
		}
		watch(daemon, at);
		if (poll(at, AT_END, (int)wait_ms) > 0)
			handle(daemon, at);
	}
	mps_log("Exit");
	remove_files();
	return 0;
}

/* A step that something was injected for: answers whether it failed. */
static int failed_step(const char *step)
{
	nvmlReturn_t rc = tool_step(step, NULL);
	if (rc == NVML_SUCCESS || rc == NVML_ERROR_UNINITIALIZED)
		return 0;
	mps_log("Failed at %s: %s", step, tool_error(rc));
	return 1;
}

static int serve(struct daemon *daemon)
{
	sigset_t handled;
	mps_log("Start");
	/* A machine without a driver can have a daemon, but no faults. */
	if (tool_load() == 0)
		NVML(nvmlInit_v2);
	if (failed_step("nvidia-cuda-mps-control"))
		return 1;
	sigemptyset(&handled);
	sigaddset(&handled, SIGTERM);
	sigaddset(&handled, SIGINT);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	daemon->signals = signalfd(-1, &handled, SFD_CLOEXEC);
	daemon->commands = mps_listen(mps_pipe_directory(), MPS_PRIVILEGED, 0600);
	daemon->programs = mps_listen(mps_pipe_directory(), MPS_CONTROL, 0666);
	if (daemon->signals < 0 || daemon->commands < 0 || daemon->programs < 0) {
		mps_log("Cannot listen in %s: %s", mps_pipe_directory(), strerror(errno));
		return 1;
	}
	write_pid();
	if (daemon->parent >= 0) {
		if (write(daemon->parent, "k", 1) != 1)
			return 1;
		close(daemon->parent);
	}
	if (failed_step("nvidia-cuda-mps-control:ready"))
		return 1;
	maybe_crash();
	return loop(daemon);
}

/* The parent ends when the child listens, or failed to. */
static int in_background(struct daemon *daemon)
{
	int status = 0, pipes[2];
	if (pipe2(pipes, O_CLOEXEC) != 0)
		return 1;
	fflush(stdout);
	pid_t child = fork();
	if (child < 0)
		return 1;
	if (child > 0) {
		char ok = 0;
		close(pipes[1]);
		if (read(pipes[0], &ok, 1) == 1)
			return 0;
		waitpid(child, &status, 0);
		return 1;
	}
	close(pipes[0]);
	setsid();
	int failed = take_directory(daemon);
	fflush(stdout);
	if (failed)
		_exit(1);
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int descriptor = 0; descriptor < 3 && nothing >= 0; descriptor++)
		dup2(nothing, descriptor);
	daemon->parent = pipes[1];
	_exit(serve(daemon));
}

int control_daemon(int foreground, int multi_user)
{
	static struct daemon daemon = {.parent = -1};
	daemon.control.multi_user = multi_user;
	daemon.control.percentage = 100;
	for (unsigned int i = 0; i < MAX_DEVICES; i++)
		daemon.control.limits[i] = NO_LIMIT;
	for (unsigned int i = 0; i < MAX_SHELLS; i++)
		daemon.control.shells[i] = -1;
	if (!foreground)
		return in_background(&daemon);
	if (take_directory(&daemon) != 0)
		return 1;
	fflush(stdout);
	return serve(&daemon);
}

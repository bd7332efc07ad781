/*
 * nvidia-cuda-mps-server: started by the control daemon, never by hand.
 *
 * A server outlives its control daemon as long as it has clients.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server.h"

/* Clients share memory with their server in a file of /dev/shm, which must be the same for both. */
static int make_shared(struct server *server)
{
	char path[128];
	snprintf(server->shared, sizeof(server->shared), "cuda.shm.%u.%x.1", getuid(), (unsigned int)getpid());
	snprintf(path, sizeof(path), "/dev/shm/%s", server->shared);
	int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0)
		return -1;
	/* The umask must not keep clients of other users out. */
	int rc = fchmod(file, 0666);
	close(file);
	return rc;
}

static void remove_shared(const struct server *server)
{
	char path[128];
	snprintf(path, sizeof(path), "/dev/shm/%s", server->shared);
	unlink(path);
}

/* Takes every device that the environment shows; NULL, or why that failed. */
static const char *open_devices(struct server *server, char *reason, size_t size)
{
	const struct gpusim_functions *functions = tool_private();
	server->device_count = tool_cuda_devices(server->devices);
	if (functions == NULL || server->device_count == 0)
		return "no device";
	for (unsigned int i = 0; i < server->device_count; i++) {
		const struct tool_device *device = &server->devices[i];
		const char *failed = tool_open_nodes(device, reason, size);
		if (failed != NULL)
			return failed;
		server->limits[i] = NO_LIMIT;
		nvmlReturn_t rc = functions->open(device->device, GPUSIM_SERVER);
		if (rc == NVML_SUCCESS)
			continue;
		snprintf(reason, size, "%.80s: %.40s", device->uuid, rc == NVML_ERROR_IN_USE ? "all CUDA-capable devices are busy or unavailable" : tool_error(rc));
		return reason;
	}
	return NULL;
}

static const char *begin(struct server *server, char *reason, size_t size)
{
	if (tool_load() != 0)
		return "no libnvidia-ml.so.1";
	nvmlReturn_t rc = NVML(nvmlInit_v2);
	if (rc == NVML_SUCCESS)
		rc = tool_step("nvidia-cuda-mps-server", NULL);
	if (rc != NVML_SUCCESS)
		return tool_error(rc);
	const char *failed = open_devices(server, reason, size);
	if (failed == NULL && make_shared(server) != 0) {
		snprintf(reason, size, "shared memory: %s", strerror(errno));
		failed = reason;
	}
	return failed;
}

static void hear_control(struct server *server)
{
	char question[MPS_PACKET], answer[MPS_PACKET];
	int descriptor = -1;
	if (mps_receive(server->control, question, &descriptor) <= 0) {
		mps_log("The control daemon is gone");
		close(server->control);
		server->control = -1;
		/* Without it nobody new comes. Whether those who are there stay can be injected. */
		server->draining = 1;
		if (tool_step("nvidia-cuda-mps-server:orphan", NULL) != NVML_SUCCESS)
			server->client_count = 0;
		return;
	}
	if (descriptor >= 0) {
		server_accept(server, descriptor);
		return;
	}
	if (strcmp(question, "end") == 0) {
		server->draining = 1;
		server->client_count = 0;
	}
	server_answer(server, question, answer);
	mps_send(server->control, answer, -1);
}

static void loop(struct server *server)
{
	struct pollfd at[MPS_MAX_CLIENTS + 2];
	while (!server->draining || server->client_count > 0) {
		unsigned int count = server->client_count;
		at[0] = (struct pollfd){.fd = server->control, .events = POLLIN};
		at[1] = (struct pollfd){.fd = server->signals, .events = POLLIN};
		for (unsigned int i = 0; i < count; i++)
			at[i + 2] = (struct pollfd){.fd = server->clients[i].socket, .events = POLLIN};
		if (poll(at, count + 2, -1) <= 0)
			continue;
		if (at[1].revents != 0)
			return;
		/* From the last to the first: who leaves has its place taken by the last. */
		for (unsigned int i = count; i > 0; i--) {
			if (at[i + 1].revents != 0)
				server_hear(server, i - 1);
		}
		if (at[0].revents != 0)
			hear_control(server);
	}
}

int main(void)
{
	static struct server server = {.percentage = 100, .next_id = 0};
	char reason[256];
	sigset_t handled;
	const char *socket = getenv("GPUSIM_MPS_SOCKET");
	if (socket == NULL) {
		printf("nvidia-cuda-mps-server is started by nvidia-cuda-mps-control\n");
		return 1;
	}
	server.control = atoi(socket);
	fcntl(server.control, F_SETFD, FD_CLOEXEC);
	sigemptyset(&handled);
	sigaddset(&handled, SIGTERM);
	sigaddset(&handled, SIGINT);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	server.signals = signalfd(-1, &handled, SFD_CLOEXEC);
	mps_log_open("server.log", "Server");
	const char *failed = begin(&server, reason, sizeof(reason));
	if (failed != NULL) {
		mps_log("Failed to start: %s", failed);
		mps_send(server.control, failed, -1);
		return 1;
	}
	mps_log("Start, %u devices", server.device_count);
	mps_send(server.control, "ready", -1);
	loop(&server);
	mps_log("Exit");
	remove_shared(&server);
	return 0;
}

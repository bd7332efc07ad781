/*
 * A program's way to the server of the pipe directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

/* Without a daemon a program goes on by itself. */
static int no_daemon(void)
{
	return errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR;
}

/* What the environment asks for: it can only narrow what the server allows. */
static void request(char text[MPS_PACKET])
{
	const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	double wish = percentage != NULL ? strtod(percentage, NULL) : 100;
	int length = snprintf(text, MPS_PACKET, "attach %.4f", wish > 0 && wish <= 100 ? wish : 100);
	while (limits != NULL && *limits != '\0') {
		size_t word = strcspn(limits, ",");
		const char *equals = memchr(limits, '=', word);
		long long mib = equals != NULL ? tool_parse_memory(equals + 1, word - (size_t)(equals + 1 - limits)) : -1;
		if (mib >= 0)
			length += snprintf(text + length, MPS_PACKET - (size_t)length, " %lu=%lld", strtoul(limits, NULL, 10), mib);
		limits += word + (limits[word] == ',');
	}
}

/* Server and client share memory in /dev/shm: a container must have the server's. */
static int shares_memory(const char *name)
{
	char path[128];
	snprintf(path, sizeof(path), "/dev/shm/%.64s", name);
	int file = open(path, O_RDWR | O_CLOEXEC);
	if (file >= 0)
		close(file);
	return file >= 0;
}

/* The line of the answer that is about this program's device. */
static int find_limit(struct session *session, const char *answer)
{
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	long long limit;
	for (const char *line = strchr(answer, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
		if (sscanf(line + 1, "%95s %lld", uuid, &limit) != 2 || strcmp(uuid, session->device.uuid) != 0)
			continue;
		session->pinned_limit = limit;
		return 1;
	}
	return 0;
}

struct failure client_attach(struct session *session)
{
	char text[MPS_PACKET], answer[MPS_PACKET], shared[65];
	int code = 0, at = 0;
	session->server = mps_connect(mps_pipe_directory(), MPS_CONTROL);
	if (session->server < 0)
		return no_daemon() ? (struct failure){0} : client_fail(CUDA_MPS_CONNECTION_FAILED, "connect to %s: %s", mps_pipe_directory(), strerror(errno));
	request(text);
	if (mps_ask(session->server, text, answer, -1) != 0)
		return client_fail(CUDA_MPS_CONNECTION_FAILED, "the control daemon went away");
	if (sscanf(answer, "error %d %n", &code, &at) == 1)
		return client_fail(code, "%s", answer + at);
	if (sscanf(answer, "ok %d %lf %64s", &session->server_pid, &session->percentage, shared) != 3)
		return client_fail(CUDA_MPS_RPC_FAILURE, "the server said %.80s", answer);
	if (!shares_memory(shared))
		return client_fail(CUDA_MPS_CONNECTION_FAILED, "/dev/shm is not that of the server: mount the server's");
	if (!find_limit(session, answer))
		return client_fail(CUDA_INVALID_DEVICE, "the server does not have %s", session->device.uuid);
	return (struct failure){0};
}

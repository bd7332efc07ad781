/*
 * gpusim-client [--device N] [--allocate MIB] [--hold]
 *
 * Prints a line of key=value words for everything that happens, and takes orders from its
 * standard input: allocate N, free N, status, quit.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client.h"

#define FAILED 1
#define USAGE 2

struct arguments {
	unsigned int device;
	long long allocate;
	int hold;
};

static void say_failure(const struct failure *failure)
{
	printf("error code=%d name=%s detail=\"%s\"\n", failure->code, tool_cuda_name(failure->code), failure->detail);
	fflush(stdout);
}

static void say_limit(const char *key, long long mib)
{
	if (mib < 0)
		printf(" %s=none", key);
	else
		printf(" %s=%lld", key, mib);
}

static void say_status(const struct session *session)
{
	nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
	unsigned long long bytes = 0;
	NVML(nvmlDeviceGetComputeMode, session->device.device, &mode);
	int limited = session->functions->limit(session->device.device, &bytes) == NVML_SUCCESS;
	printf("open device=%u uuid=%s pid=%d compute_mode=%d", session->ordinal, session->device.uuid, (int)getpid(), (int)mode);
	if (session->server >= 0)
		printf(" mps=%d", session->server_pid);
	else
		printf(" mps=none");
	printf(" thread_percentage=%.1f", session->percentage);
	say_limit("pinned_limit", session->pinned_limit);
	say_limit("cgroup_limit", limited ? (long long)(bytes >> 20) : -1);
	printf(" allocated=%lld\n", session->allocated);
	fflush(stdout);
}

static struct failure change(struct session *session, long long mib)
{
	struct failure failure = client_allocate(session, mib);
	if (failure.code == 0) {
		printf("allocated device=%u mib=%lld total=%lld\n", session->ordinal, mib, session->allocated);
		fflush(stdout);
	} else {
		say_failure(&failure);
	}
	return failure;
}

/* Obeys one line; answers whether to go on. */
static int obey(struct session *session, const char *line)
{
	long long mib;
	struct failure failure = {0};
	if (sscanf(line, "allocate %lld", &mib) == 1) {
		failure = change(session, mib);
	} else if (sscanf(line, "free %lld", &mib) == 1) {
		failure = change(session, -mib);
	} else if (strncmp(line, "status", 6) == 0) {
		failure = client_refresh(session);
		if (failure.code == 0)
			say_status(session);
		else
			say_failure(&failure);
	} else if (strncmp(line, "quit", 4) == 0) {
		return 0;
	} else {
		printf("error code=1 name=CUDA_ERROR_INVALID_VALUE detail=\"orders are allocate N, free N, status, quit\"\n");
		fflush(stdout);
	}
	return 1;
}

/* The server's end is the end of its clients, as on hardware. */
static struct failure hear_server(struct session *session)
{
	char text[MPS_PACKET];
	int code = 0, at = 0;
	if (mps_receive(session->server, text, NULL) <= 0)
		return client_fail(CUDA_MPS_RPC_FAILURE, "the server went away");
	if (sscanf(text, "error %d %n", &code, &at) == 1)
		return client_fail(code, "%s", text + at);
	return (struct failure){0};
}

/* Reads what there is of the input and obeys whole lines; -1 to end, 0 at the end of the input. */
static int hear_input(struct session *session)
{
	static char buffer[4096];
	static size_t length;
	ssize_t came = read(STDIN_FILENO, buffer + length, sizeof(buffer) - 1 - length);
	if (came <= 0)
		return 0;
	length += (size_t)came;
	buffer[length] = '\0';
	for (char *end = strchr(buffer, '\n'); end != NULL; end = strchr(buffer, '\n')) {
		*end = '\0';
		if (!obey(session, buffer))
			return -1;
		length -= (size_t)(end + 1 - buffer);
		memmove(buffer, end + 1, length + 1);
	}
	return length < sizeof(buffer) - 1 ? 1 : -1;
}

static int stay(struct session *session, int hold)
{
	sigset_t handled;
	sigemptyset(&handled);
	sigaddset(&handled, SIGTERM);
	sigaddset(&handled, SIGINT);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	struct pollfd at[] = {
		{.fd = STDIN_FILENO, .events = POLLIN},
		{.fd = session->server, .events = POLLIN},
		{.fd = signalfd(-1, &handled, SFD_CLOEXEC), .events = POLLIN},
	};
	for (;;) {
		if (poll(at, 3, -1) <= 0)
			continue;
		if (at[2].revents != 0)
			return 0;
		if (at[1].revents != 0) {
			struct failure failure = hear_server(session);
			if (failure.code != 0) {
				say_failure(&failure);
				return FAILED;
			}
		}
		if (at[0].revents == 0)
			continue;
		int heard = hear_input(session);
		if (heard < 0 || (heard == 0 && !hold))
			return 0;
		if (heard == 0)
			at[0].fd = -1;
	}
}

static int parse(int argc, char **argv, struct arguments *arguments)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (strcmp(argv[i], "--hold") == 0) {
			arguments->hold = 1;
			continue;
		}
		if (value == NULL)
			return -1;
		if (strcmp(argv[i], "--device") == 0)
			arguments->device = (unsigned int)strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--allocate") == 0)
			arguments->allocate = strtoll(value, NULL, 10);
		else
			return -1;
		i++;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct arguments arguments = {0};
	struct session session = {.server = -1, .percentage = 100, .pinned_limit = -1};
	if (parse(argc, argv, &arguments) != 0) {
		printf("usage: gpusim-client [--device N] [--allocate MIB] [--hold]\n"
			"Opens the device as a program in this container would. Orders on the standard input: allocate N, free N, status, quit.\n"
			"At the end of the input it ends, with --hold only by a signal or with its server.\n");
		return USAGE;
	}
	struct failure failure = client_open(&session, arguments.device);
	if (failure.code != 0) {
		say_failure(&failure);
		return FAILED;
	}
	say_status(&session);
	if (arguments.allocate > 0 && change(&session, arguments.allocate).code != 0)
		return FAILED;
	return stay(&session, arguments.hold);
}

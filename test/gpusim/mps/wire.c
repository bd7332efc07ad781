#define _GNU_SOURCE /* struct ucred, accept4 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

static const char *directory_of(const char *variable, const char *otherwise)
{
	const char *given = getenv(variable);
	return given != NULL && *given != '\0' ? given : otherwise;
}

const char *mps_pipe_directory(void)
{
	return directory_of("CUDA_MPS_PIPE_DIRECTORY", MPS_DEFAULT_PIPES);
}

const char *mps_log_directory(void)
{
	return directory_of("CUDA_MPS_LOG_DIRECTORY", MPS_DEFAULT_LOGS);
}

/* Goes by way of the directory's descriptor: its path may be longer than an address. */
static int address_in(const char *directory, const char *name, struct sockaddr_un *address)
{
	int held = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (held < 0)
		return -1;
	address->sun_family = AF_UNIX;
	if (access("/proc/self/fd", X_OK) == 0)
		snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/%s", held, name);
	else
		snprintf(address->sun_path, sizeof(address->sun_path), "%.80s/%s", directory, name);
	return held;
}

static int close_keep_errno(int descriptor)
{
	int kept = errno;
	if (descriptor >= 0)
		close(descriptor);
	errno = kept;
	return -1;
}

int mps_listen(const char *directory, const char *name, mode_t mode)
{
	struct sockaddr_un address = {0};
	int held = address_in(directory, name, &address);
	if (held < 0)
		return -1;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	unlink(address.sun_path);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || chmod(address.sun_path, mode) != 0 ||
		listen(listener, 128) != 0) {
		close_keep_errno(listener);
		listener = -1;
	}
	close_keep_errno(held);
	return listener;
}

int mps_connect(const char *directory, const char *name)
{
	struct sockaddr_un address = {0};
	int held = address_in(directory, name, &address);
	if (held < 0)
		return -1;
	int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof(address)) != 0)
		connection = close_keep_errno(connection);
	close_keep_errno(held);
	return connection;
}

int mps_accept(int listener)
{
	return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

union descriptor_space {
	struct cmsghdr align;
	char space[CMSG_SPACE(sizeof(int))];
};

int mps_send(int socket, const char *text, int descriptor)
{
	union descriptor_space space = {0};
	struct iovec data = {.iov_base = (void *)(size_t)text, .iov_len = strlen(text)};
	/* An empty packet would look like the end. */
	if (data.iov_len == 0)
		data = (struct iovec){.iov_base = (void *)(size_t)"\n", .iov_len = 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	if (descriptor >= 0) {
		message.msg_control = space.space;
		message.msg_controllen = sizeof(space.space);
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
	}
	ssize_t sent;
	do {
		sent = sendmsg(socket, &message, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent >= 0 ? 0 : -1;
}

ssize_t mps_receive(int socket, char text[MPS_PACKET], int *descriptor)
{
	union descriptor_space space = {0};
	struct iovec data = {.iov_base = text, .iov_len = MPS_PACKET - 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space.space, .msg_controllen = sizeof(space.space)};
	ssize_t length;
	do {
		length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	} while (length < 0 && errno == EINTR);
	text[length > 0 ? length : 0] = '\0';
	if (descriptor != NULL)
		*descriptor = -1;
	struct cmsghdr *header = length >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
		int came;
		memcpy(&came, CMSG_DATA(header), sizeof(came));
		if (descriptor != NULL)
			*descriptor = came;
		else
			close(came);
	}
	return length;
}

int mps_ask(int socket, const char *text, char answer[MPS_PACKET], int timeout_ms)
{
	struct pollfd waiting = {.fd = socket, .events = POLLIN};
	if (mps_send(socket, text, -1) != 0)
		return -1;
	int ready;
	do {
		ready = poll(&waiting, 1, timeout_ms);
	} while (ready < 0 && errno == EINTR);
	return ready > 0 && mps_receive(socket, answer, NULL) > 0 ? 0 : -1;
}

/* What was not read when a socket closes would cost the other end the answer. */
void mps_refuse(int socket, const char *text)
{
	char ignored[MPS_PACKET];
	struct pollfd waiting = {.fd = socket, .events = POLLIN};
	if (poll(&waiting, 1, 1000) > 0)
		mps_receive(socket, ignored, NULL);
	mps_send(socket, text, -1);
	close(socket);
}

void mps_peer(int socket, pid_t *pid, uid_t *uid)
{
	struct ucred credentials = {0};
	socklen_t size = sizeof(credentials);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
		credentials.uid = (uid_t)-1;
	*pid = credentials.pid;
	*uid = credentials.uid;
}

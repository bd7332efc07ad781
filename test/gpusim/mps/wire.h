/*
 * How the parts of the Multi-Process Service talk: packets of text over sockets in the pipe
 * directory. The words are this simulator's own.
 */
#ifndef MPS_WIRE_H
#define MPS_WIRE_H

#include <stddef.h>
#include <sys/types.h>

#define MPS_PACKET 16384u
#define MPS_DEFAULT_PIPES "/tmp/nvidia-mps"
#define MPS_DEFAULT_LOGS "/var/log/nvidia-mps"
#define MPS_MAX_CLIENTS 48u

/* The socket for programs, and the one for commands. */
#define MPS_CONTROL "control"
#define MPS_PRIVILEGED "control_privileged"

const char *mps_pipe_directory(void);
const char *mps_log_directory(void);
/* All answer a descriptor, or -1 with errno. */
int mps_listen(const char *directory, const char *name, mode_t mode);
int mps_connect(const char *directory, const char *name);
int mps_accept(int listener);
/* Sends text, and a descriptor that is not negative; 0 on success. */
int mps_send(int socket, const char *text, int descriptor);
/* Receives a packet as text; its length, 0 at the end, -1 on an error. The descriptor that
 * came with it goes to *descriptor, or is closed where that is NULL. */
ssize_t mps_receive(int socket, char text[MPS_PACKET], int *descriptor);
/* Sends and waits for the answer; 0 on success. */
int mps_ask(int socket, const char *text, char answer[MPS_PACKET], int timeout_ms);
/* Answers whoever just connected, and closes. */
void mps_refuse(int socket, const char *text);
/* Who is at the other end. */
void mps_peer(int socket, pid_t *pid, uid_t *uid);

/* log.c: lines as the real tools write them. */
int mps_log_open(const char *name, const char *who);
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

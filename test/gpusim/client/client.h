/*
 * A program that computes, as far as others see it: it opens a device the way its container
 * lets it, takes memory, and stays.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "cuda.h"
#include "wire.h"

struct session {
	const struct gpusim_functions *functions;
	struct tool_device device;
	unsigned int ordinal;
	/* The connection to a server, -1 without one. */
	int server;
	int server_pid;
	double percentage;
	/* MiB, -1 for none. */
	long long pinned_limit;
	long long allocated;
};

/* A CUDA error and what lies behind it; code 0 is none. */
struct failure {
	int code;
	char detail[256];
};

struct failure client_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* session.c */
struct failure client_open(struct session *session, unsigned int ordinal);
struct failure client_allocate(struct session *session, long long mib);
struct failure client_refresh(struct session *session);

/* attach.c: connects to a server where there is a control daemon. */
struct failure client_attach(struct session *session);

#endif

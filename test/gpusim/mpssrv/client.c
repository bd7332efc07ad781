/*
 * Clients of a server.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server.h"

/* The server's limit and the client's own: the environment can only narrow it. */
long long server_limit(const struct server *server, const struct client *client, unsigned int device)
{
	long long limit = server->limits[device], own = client->allowed[device];
	if (limit == NO_LIMIT || (own != NO_LIMIT && own < limit))
		return own;
	return limit;
}

static double percentage_of(const struct server *server, const struct client *client)
{
	return client->wish < server->percentage ? client->wish : server->percentage;
}

static int device_of(const struct server *server, const char *uuid)
{
	for (unsigned int i = 0; i < server->device_count; i++) {
		if (strcmp(server->devices[i].uuid, uuid) == 0)
			return (int)i;
	}
	return -1;
}

/* "attach PERCENT [DEVICE=MIB ...]" */
static void attach(struct server *server, struct client *client, char *text)
{
	char answer[MPS_PACKET], *rest = NULL;
	strtok_r(text, " ", &rest);
	const char *wish = strtok_r(NULL, " ", &rest);
	client->wish = wish != NULL ? strtod(wish, NULL) : 100;
	for (char *word = strtok_r(NULL, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
		char *equals = strchr(word, '=');
		unsigned long device = strtoul(word, NULL, 10);
		if (equals != NULL && device < server->device_count)
			client->allowed[device] = strtoll(equals + 1, NULL, 10);
	}
	client->attached = 1;
	int length = snprintf(answer, sizeof(answer), "ok %d %.1f %s\n", (int)getpid(), percentage_of(server, client), server->shared);
	for (unsigned int i = 0; i < server->device_count; i++)
		length += snprintf(answer + length, sizeof(answer) - (size_t)length, "%s %lld\n", server->devices[i].uuid, server_limit(server, client, i));
	mps_log("Client %d of user %u attached as %u", (int)client->pid, client->uid, client->id);
	mps_send(client->socket, answer, -1);
}

/* "allocate UUID MIB": less than zero gives back. */
static void allocate(struct server *server, struct client *client, const char *text)
{
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE], answer[128];
	long long mib;
	if (sscanf(text, "allocate %95s %lld", uuid, &mib) != 2 || device_of(server, uuid) < 0) {
		mps_send(client->socket, "error 101 the server does not have this device", -1);
		return;
	}
	unsigned int device = (unsigned int)device_of(server, uuid);
	long long limit = server_limit(server, client, device);
	if (limit != NO_LIMIT && mib > 0 && client->used[device] + mib > limit) {
		snprintf(answer, sizeof(answer), "error 2 pinned memory limit of %lld MiB, %lld MiB used", limit, client->used[device]);
		mps_log("Client %d: %s", (int)client->pid, answer);
		mps_send(client->socket, answer, -1);
		return;
	}
	client->used[device] += mib;
	mps_send(client->socket, "ok", -1);
}

void server_accept(struct server *server, int socket)
{
	if (server->client_count == MPS_MAX_CLIENTS || server->draining) {
		mps_refuse(socket, server->draining ? "error 807 the server is ending" : "error 808 the server has all the clients it can have");
		return;
	}
	struct client *client = &server->clients[server->client_count++];
	*client = (struct client){.socket = socket, .id = server->next_id++, .wish = 100};
	for (unsigned int i = 0; i < TOOL_MAX_GPUS; i++)
		client->allowed[i] = NO_LIMIT;
	mps_peer(socket, &client->pid, &client->uid);
}

void server_end(struct server *server, unsigned int place, const char *why)
{
	struct client *client = &server->clients[place];
	mps_log("Client %d %s", (int)client->pid, why);
	close(client->socket);
	*client = server->clients[--server->client_count];
}

void server_hear(struct server *server, unsigned int place)
{
	char text[MPS_PACKET], answer[64];
	struct client *client = &server->clients[place];
	if (mps_receive(client->socket, text, NULL) <= 0) {
		server_end(server, place, "left");
		return;
	}
	if (strncmp(text, "attach", 6) == 0) {
		attach(server, client, text);
	} else if (strncmp(text, "allocate", 8) == 0) {
		allocate(server, client, text);
	} else if (strcmp(text, "percentage") == 0) {
		snprintf(answer, sizeof(answer), "ok %.1f", percentage_of(server, client));
		mps_send(client->socket, answer, -1);
	} else {
		mps_send(client->socket, "error 806 no such request", -1);
	}
}

/*
 * The commands of the control daemon. What each prints is what the real one prints, as far
 * as tools read it.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "cuda.h"

/* The words of a command, behind its name. */
struct words {
	unsigned int count;
	char *word[8];
};

typedef void command(struct control *control, const struct words *words, char answer[MPS_PACKET]);

__attribute__((format(printf, 2, 3))) static void print(char answer[MPS_PACKET], const char *format, ...)
{
	size_t length = strlen(answer);
	va_list args;
	va_start(args, format);
	vsnprintf(answer + length, MPS_PACKET - length, format, args);
	va_end(args);
}

/* The server that a word names; prints what is wrong where it names none. */
static struct server *server_of(struct control *control, const char *word, char answer[MPS_PACKET])
{
	struct server *server = control_server(control, (pid_t)strtol(word, NULL, 10));
	if (server == NULL)
		print(answer, "Cannot find MPS server with PID %s\n", word);
	return server;
}

static int parse_percentage(const char *word, double *percentage, char answer[MPS_PACKET])
{
	char *end = NULL;
	*percentage = strtod(word, &end);
	if (end != word && *end == '\0' && *percentage > 0 && *percentage <= 100)
		return 0;
	print(answer, "Invalid active thread percentage %s: must be above 0 and at most 100\n", word);
	return -1;
}

/* The number of a device: one that is named by its UUID is ignored, without a word. */
static int device_of(const char *word)
{
	char *end = NULL;
	unsigned long number = strtoul(word, &end, 10);
	return end != word && *end == '\0' && number < MAX_DEVICES ? (int)number : -1;
}

static void get_server_list(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	(void)words;
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		if (control->servers[i].pid != 0)
			print(answer, "%d\n", (int)control->servers[i].pid);
	}
}

static void get_server_status(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	const struct server *server = server_of(control, words->word[0], answer);
	if (server != NULL)
		print(answer, "%s\n", server->ready ? "ACTIVE" : "INITIALIZING");
}

static void start_server(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	if (strcmp(words->word[0], "-uid") != 0 || !isdigit((unsigned char)words->word[1][0])) {
		print(answer, "Usage: start_server -uid <user id>\n");
		return;
	}
	if (control_server_count(control) == 0 && control_start(control, (uid_t)strtoul(words->word[1], NULL, 10)) == NULL)
		print(answer, "Failed to start a server\n");
}

static void shutdown_server(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	struct server *server = server_of(control, words->word[0], answer);
	char ignored[MPS_PACKET];
	if (server == NULL)
		return;
	server->draining = 1;
	control_ask(server, words->count > 1 && strcmp(words->word[1], "-f") == 0 ? "end" : "drain", ignored);
}

static void get_client_list(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char text[MPS_PACKET];
	struct server *server = server_of(control, words->word[0], answer);
	if (server != NULL)
		print(answer, "%s", control_ask(server, "clients", text));
}

static void get_device_client_list(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char text[MPS_PACKET];
	(void)words;
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		if (control->servers[i].pid != 0)
			print(answer, "%s", control_ask(&control->servers[i], "devices", text));
	}
}

static void ps(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char text[MPS_PACKET];
	(void)words;
	print(answer, "%-9s %-5s %-9s %-20s %-12s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
	for (unsigned int i = 0; i < MAX_SERVERS; i++) {
		if (control->servers[i].pid != 0)
			print(answer, "%s", control_ask(&control->servers[i], "ps", text));
	}
}

static void terminate_client(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char question[64], text[MPS_PACKET];
	struct server *server = server_of(control, words->word[0], answer);
	if (server == NULL)
		return;
	snprintf(question, sizeof(question), "terminate %ld", strtol(words->word[1], NULL, 10));
	print(answer, "%s", control_ask(server, question, text));
}

static void set_default_percentage(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	double percentage;
	if (parse_percentage(words->word[0], &percentage, answer) != 0)
		return;
	control->percentage = percentage;
	print(answer, "%.1f\n", percentage);
}

static void get_default_percentage(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	(void)words;
	print(answer, "%.1f\n", control->percentage);
}

static void set_percentage(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char question[64], text[MPS_PACKET];
	double percentage;
	struct server *server = server_of(control, words->word[0], answer);
	if (server == NULL || parse_percentage(words->word[1], &percentage, answer) != 0)
		return;
	snprintf(question, sizeof(question), "percentage %.4f", percentage);
	control_ask(server, question, text);
	print(answer, "%.1f\n", percentage);
}

static void get_percentage(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char text[MPS_PACKET];
	struct server *server = server_of(control, words->word[0], answer);
	if (server != NULL)
		print(answer, "%s", control_ask(server, "get percentage", text));
}

static void set_default_limit(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	int device = device_of(words->word[0]);
	long long limit = tool_parse_memory(words->word[1], strlen(words->word[1]));
	if (limit < 0)
		print(answer, "Invalid pinned memory limit %s\n", words->word[1]);
	else if (device >= 0)
		control->limits[device] = limit;
}

static void print_limit(char answer[MPS_PACKET], long long limit)
{
	if (limit == NO_LIMIT)
		print(answer, "unlimited\n");
	else
		print(answer, "%lldM\n", limit);
}

static void get_default_limit(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	int device = device_of(words->word[0]);
	print_limit(answer, device >= 0 ? control->limits[device] : NO_LIMIT);
}

static void set_limit(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char question[64], text[MPS_PACKET];
	struct server *server = server_of(control, words->word[0], answer);
	int device = device_of(words->word[1]);
	long long limit = tool_parse_memory(words->word[2], strlen(words->word[2]));
	if (server == NULL || device < 0)
		return;
	if (limit < 0) {
		print(answer, "Invalid pinned memory limit %s\n", words->word[2]);
		return;
	}
	snprintf(question, sizeof(question), "limit %d %lld", device, limit);
	control_ask(server, question, text);
}

static void get_limit(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	char question[64], text[MPS_PACKET];
	struct server *server = server_of(control, words->word[0], answer);
	if (server == NULL)
		return;
	snprintf(question, sizeof(question), "get limit %d", device_of(words->word[1]));
	print_limit(answer, strtoll(control_ask(server, question, text), NULL, 10));
}

/* Ends when the servers have: without a time when their clients leave. */
static void quit(struct control *control, const struct words *words, char answer[MPS_PACKET])
{
	(void)answer;
	int timed = words->count > 1 && strcmp(words->word[0], "-t") == 0;
	control->quitting = 1;
	if (timed)
		control->deadline_ms = control_now_ms() + 1000 * strtol(words->word[1], NULL, 10);
	control_drain(control, 0);
}

static const struct {
	const char *name;
	unsigned int words;
	command *run;
} commands[] = {
	{"get_server_list", 0, get_server_list},
	{"get_server_status", 1, get_server_status},
	{"start_server", 2, start_server},
	{"shutdown_server", 1, shutdown_server},
	{"get_client_list", 1, get_client_list},
	{"get_device_client_list", 0, get_device_client_list},
	{"ps", 0, ps},
	{"terminate_client", 2, terminate_client},
	{"set_default_active_thread_percentage", 1, set_default_percentage},
	{"get_default_active_thread_percentage", 0, get_default_percentage},
	{"set_active_thread_percentage", 2, set_percentage},
	{"get_active_thread_percentage", 1, get_percentage},
	{"set_default_device_pinned_mem_limit", 2, set_default_limit},
	{"get_default_device_pinned_mem_limit", 1, get_default_limit},
	{"set_device_pinned_mem_limit", 3, set_limit},
	{"get_device_pinned_mem_limit", 2, get_limit},
	{"quit", 0, quit},
};

void control_command(struct control *control, char *line, char answer[MPS_PACKET])
{
	struct words words = {0};
	char step[64], *rest = NULL;
	answer[0] = '\0';
	const char *name = strtok_r(line, " \t\r\n", &rest);
	if (name == NULL)
		return;
	for (char *word = strtok_r(NULL, " \t\r\n", &rest); word != NULL && words.count < 8; word = strtok_r(NULL, " \t\r\n", &rest))
		words.word[words.count++] = word;
	snprintf(step, sizeof(step), "nvidia-cuda-mps-control:%.36s", name);
	nvmlReturn_t rc = tool_step(step, NULL);
	mps_log("NEW UI command %s", name);
	if (rc != NVML_SUCCESS && rc != NVML_ERROR_UNINITIALIZED) {
		print(answer, "%s failed: %s\n", name, tool_error(rc));
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(name, commands[i].name) != 0)
			continue;
		if (words.count < commands[i].words)
			print(answer, "Missing argument of %s\n", name);
		else
			commands[i].run(control, &words, answer);
		return;
	}
	print(answer, "Unknown command: %s\n", name);
}

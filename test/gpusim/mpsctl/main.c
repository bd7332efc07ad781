/*
 * nvidia-cuda-mps-control: the daemon with -d or -f, else a shell that sends the lines of
 * its input to the daemon of the pipe directory.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

int control_shell(void)
{
	char line[1024], answer[MPS_PACKET];
	int connection = mps_connect(mps_pipe_directory(), MPS_PRIVILEGED);
	if (connection < 0) {
		printf("Cannot find MPS control daemon process\n");
		return 1;
	}
	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (strspn(line, " \t\r\n") == strlen(line))
			continue;
		int quits = strncmp(line, "quit", 4) == 0;
		if (mps_ask(connection, line, answer, -1) != 0) {
			if (!quits)
				printf("Lost the MPS control daemon process\n");
			return quits ? 0 : 1;
		}
		fputs(strcmp(answer, "\n") == 0 ? "" : answer, stdout);
		fflush(stdout);
	}
	return 0;
}

static int usage(void)
{
	printf("usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n"
		"  -d                  start the daemon in the background\n"
		"  -f                  start the daemon in the foreground\n"
		"  -multiuser-server   one server for the programs of all users\n"
		"Without -d or -f: commands from the standard input.\n");
	return 1;
}

int main(int argc, char **argv)
{
	int background = 0, foreground = 0, multi_user = 0;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-d") == 0)
			background = 1;
		else if (strcmp(argv[i], "-f") == 0)
			foreground = 1;
		else if (strcmp(argv[i], "-multiuser-server") == 0 || strcmp(argv[i], "--multiuser-server") == 0 || strcmp(argv[i], "-M") == 0)
			multi_user = 1;
		else
			return usage();
	}
	if (background && foreground)
		return usage();
	if (background || foreground)
		return control_daemon(foreground, multi_user);
	return control_shell();
}

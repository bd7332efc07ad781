#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

static int log_file = -1;
static const char *log_who = "";

int mps_log_open(const char *name, const char *who)
{
	char path[PATH_MAX];
	log_who = who;
	mkdir(mps_log_directory(), 0755);
	snprintf(path, sizeof(path), "%s/%s", mps_log_directory(), name);
	log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	return log_file >= 0 ? 0 : -1;
}

void mps_log(const char *format, ...)
{
	char line[1024], stamp[32];
	struct timespec now;
	struct tm parts;
	va_list args;
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &parts);
	strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &parts);
	int length = snprintf(line, sizeof(line), "[%s.%03ld %s %d] ", stamp, now.tv_nsec / 1000000, log_who, (int)getpid());
	va_start(args, format);
	length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, args);
	va_end(args);
	if (length > (int)sizeof(line) - 2)
		length = (int)sizeof(line) - 2;
	line[length] = '\n';
	/* A full disk must not end what it tells about. */
	if (log_file >= 0 && write(log_file, line, (size_t)length + 1) < 0)
		return;
}

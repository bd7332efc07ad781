#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

struct failure client_fail(int code, const char *format, ...)
{
	struct failure failure = {.code = code};
	va_list args;
	va_start(args, format);
	vsnprintf(failure.detail, sizeof(failure.detail), format, args);
	va_end(args);
	return failure;
}

static struct failure start(struct session *session)
{
	if (tool_load() != 0)
		return client_fail(CUDA_NO_DEVICE, "no libnvidia-ml.so.1");
	nvmlReturn_t rc = NVML(nvmlInit_v2);
	if (rc == NVML_SUCCESS)
		rc = tool_step("gpusim-client", NULL);
	if (rc != NVML_SUCCESS)
		return client_fail(CUDA_NO_DEVICE, "start: %s", tool_error(rc));
	session->functions = tool_private();
	return session->functions != NULL ? (struct failure){0} : client_fail(CUDA_UNKNOWN, "libnvidia-ml.so.1 is of another simulator");
}

struct failure client_open(struct session *session, unsigned int ordinal)
{
	static struct tool_device devices[TOOL_MAX_GPUS];
	char reason[160];
	struct failure failure = start(session);
	if (failure.code != 0)
		return failure;
	unsigned int count = tool_cuda_devices(devices);
	if (count == 0)
		return client_fail(CUDA_NO_DEVICE, "no CUDA-capable device is detected");
	if (ordinal >= count)
		return client_fail(CUDA_INVALID_DEVICE, "there are %u devices", count);
	session->device = devices[ordinal];
	session->ordinal = ordinal;
	const char *failed = tool_open_nodes(&session->device, reason, sizeof(reason));
	if (failed != NULL)
		return client_fail(CUDA_NO_DEVICE, "%s", failed);
	failure = client_attach(session);
	if (failure.code != 0)
		return failure;
	nvmlReturn_t rc = session->functions->open(session->device.device, session->server >= 0 ? GPUSIM_CLIENT : GPUSIM_DIRECT);
	if (rc == NVML_ERROR_IN_USE)
		return client_fail(CUDA_DEVICE_UNAVAILABLE, "the compute mode admits no further process");
	return rc == NVML_SUCCESS ? (struct failure){0} : client_fail(CUDA_UNKNOWN, "open: %s", tool_error(rc));
}

/* Asks the server to allow mib more, or to take note of less. */
static struct failure ask_server(struct session *session, long long mib)
{
	char question[160], answer[MPS_PACKET];
	int code = 0, at = 0;
	if (session->server < 0)
		return (struct failure){0};
	snprintf(question, sizeof(question), "allocate %s %lld", session->device.uuid, mib);
	if (mps_ask(session->server, question, answer, -1) != 0)
		return client_fail(CUDA_MPS_RPC_FAILURE, "the server went away");
	if (sscanf(answer, "error %d %n", &code, &at) == 1)
		return client_fail(code, "%s", answer + at);
	return (struct failure){0};
}

struct failure client_allocate(struct session *session, long long mib)
{
	if (mib < 0 && -mib > session->allocated)
		return client_fail(1, "%lld MiB are allocated", session->allocated);
	nvmlReturn_t rc = tool_step("gpusim-client:allocate", &session->device.device);
	if (rc != NVML_SUCCESS)
		return client_fail(CUDA_UNKNOWN, "allocate: %s", tool_error(rc));
	struct failure failure = ask_server(session, mib);
	if (failure.code != 0)
		return failure;
	rc = session->functions->allocate(session->device.device, mib);
	if (rc == NVML_SUCCESS) {
		session->allocated += mib;
		return (struct failure){0};
	}
	ask_server(session, -mib);
	return client_fail(rc == NVML_ERROR_INSUFFICIENT_RESOURCES ? CUDA_OUT_OF_MEMORY : CUDA_UNKNOWN, "%s",
		rc == NVML_ERROR_INSUFFICIENT_RESOURCES ? "the device or the limit of the cgroup has no room" : tool_error(rc));
}

/* Asks how much of the device this program may use now. */
struct failure client_refresh(struct session *session)
{
	char answer[MPS_PACKET];
	if (session->server < 0)
		return (struct failure){0};
	if (mps_ask(session->server, "percentage", answer, -1) != 0 || sscanf(answer, "ok %lf", &session->percentage) != 1)
		return client_fail(CUDA_MPS_RPC_FAILURE, "the server went away");
	return (struct failure){0};
}

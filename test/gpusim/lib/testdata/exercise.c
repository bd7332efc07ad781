/*
 * Calls the whole library with good and bad arguments, from several threads and before and
 * after initialisation. Run under the sanitizers it proves that no answer writes where it
 * must not. It prints what is wrong and ends with 1, or the number of boards and with 0.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "exercise.h"

static int failures;

void expect(const char *what, nvmlReturn_t got, nvmlReturn_t want)
{
	if (got == want)
		return;
	__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
	printf("%s: got %d (%s), want %d\n", what, got, nvmlErrorString(got), want);
}

void expect_number(const char *what, unsigned long long got, unsigned long long want)
{
	if (got == want)
		return;
	__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
	printf("%s: got %llu, want %llu\n", what, got, want);
}

/* A failed length check must leave the byte behind the buffer alone. */
static void short_buffers(nvmlDevice_t device)
{
	char text[8];
	memset(text, 'x', sizeof(text));
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetUUID(device, text, 4));
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetName(device, text, 4));
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlSystemGetDriverVersion(text, 4));
	if (text[4] != 'x')
		expect("write behind a short buffer", NVML_ERROR_UNKNOWN, NVML_SUCCESS);
}

static void null_arguments(nvmlDevice_t device)
{
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(0, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(NULL, &device));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2("not an address", &device));
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("0000:fe:1f.0", &device));
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-0", &device));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUUID(device, NULL, 80));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMinorNumber(device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPciInfo_v3(device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo_v2(device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMigMode(device, NULL, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCpuAffinity(device, 0, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetTopologyCommonAncestor(device, device, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetFieldValues(device, 1, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetCreate(NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlInitWithFlags(0x80));
}

static void wrong_versions(nvmlDevice_t device)
{
	nvmlMemory_v2_t memory = {.version = 1};
	nvmlDeviceAddressingMode_t mode = {.version = 77};
	nvmlGpuFabricInfoV_t fabric;
	nvmlUUID_t uuid = {.version = 9};
	nvmlPciInfoExt_t pci = {.version = 9};
	memset(&fabric, 0, sizeof(fabric));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetMemoryInfo_v2(device, &memory));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetAddressingMode(device, &mode));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetGpuFabricInfoV(device, &fabric));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetHandleByUUIDV(&uuid, &device));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetPciInfoExt(device, &pci));
}

/* Handles that were never given out. */
static void wild_handles(nvmlDevice_t good)
{
	unsigned int number;
	const uintptr_t wild[] = {0, 1, 8, UINTPTR_MAX, (uintptr_t)&number, (uintptr_t)good.handle + 1, (uintptr_t)good.handle + (1u << 20)};
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		nvmlDevice_t device = {.handle = (struct nvmlDevice_st *)wild[i]};
		nvmlEventSet_t set = {.handle = (struct nvmlEventSet_st *)wild[i]};
		nvmlEventData_t data;
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMinorNumber(device, &number));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceIsMigDeviceHandle(device, &number));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetFree(set));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetWait_v2(set, &data, 0));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceRegisterEvents(good, nvmlEventTypeXidCriticalError, set));
	}
}

/* Reads everything about a board once; what is not supported may say so. */
static void read_all(nvmlDevice_t device)
{
	char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	unsigned int a, b, c, d;
	int x, y;
	unsigned long mask[32];
	unsigned long long count;
	nvmlPciInfo_t pci;
	nvmlEnableState_t s, t;
	nvmlMemory_t memory;
	nvmlBAR1Memory_t bar1;
	nvmlUtilization_t rates;
	nvmlGpuFabricInfo_v4_t fabric;
	nvmlFieldValue_t fields[300];
	EXPECT(NVML_SUCCESS, nvmlDeviceGetName(device, text, sizeof(text)));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetPciInfo(device, &pci));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetPciInfo_v2(device, &pci));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetCudaComputeCapability(device, &x, &y));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetCpuAffinity(device, 1, mask));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetCpuAffinity(device, 32, mask));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryAffinity(device, 32, mask, NVML_AFFINITY_SCOPE_NODE));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryInfo(device, &memory));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetUtilizationRates(device, &rates));
	nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
	nvmlDeviceGetRemappedRows(device, &a, &b, &c, &d);
	nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, &count);
	nvmlDeviceGetEccMode(device, &s, &t);
	nvmlDeviceGetGpuFabricInfo_v4(device, &fabric);
	memset(fields, 0, sizeof(fields));
	for (unsigned int i = 0; i < 300; i++) {
		fields[i].fieldId = i;
		fields[i].scopeId = i % 40;
	}
	EXPECT(NVML_SUCCESS, nvmlDeviceGetFieldValues(device, 300, fields));
	for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS + 2; link++) {
		nvmlIntNvLinkDeviceType_t type;
		nvmlDeviceGetNvLinkState(device, link, &s);
		nvmlDeviceGetNvLinkRemotePciInfo(device, link, &pci);
		nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &type);
		nvmlDeviceGetNvLinkErrorCounter(device, link, NVML_NVLINK_ERROR_DL_REPLAY, &count);
		nvmlDeviceGetNvLinkCapability(device, link, NVML_NVLINK_CAP_VALID, &a);
	}
	/* A stub, with arguments that it must not touch. */
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetFanSpeed(device, (unsigned int *)1));
}

static void *hammer(void *argument)
{
	unsigned int count = 0;
	(void)argument;
	for (int round = 0; round < 20; round++) {
		EXPECT(NVML_SUCCESS, nvmlInit_v2());
		EXPECT(NVML_SUCCESS, nvmlDeviceGetCount(&count));
		for (unsigned int i = 0; i < count; i++) {
			nvmlDevice_t device;
			EXPECT(NVML_SUCCESS, nvmlDeviceGetHandleByIndex(i, &device));
			read_all(device);
			EXPECT(NVML_SUCCESS, nvmlDeviceSetComputeMode(device, round % 2 ? NVML_COMPUTEMODE_DEFAULT : NVML_COMPUTEMODE_EXCLUSIVE_PROCESS));
		}
		EXPECT(NVML_SUCCESS, nvmlShutdown());
	}
	return NULL;
}

static void event_sets(nvmlDevice_t device)
{
	nvmlEventSet_t sets[128], one_more;
	nvmlEventData_t data;
	for (size_t i = 0; i < 128; i++)
		EXPECT(NVML_SUCCESS, nvmlEventSetCreate(&sets[i]));
	EXPECT(NVML_ERROR_INSUFFICIENT_RESOURCES, nvmlEventSetCreate(&one_more));
	EXPECT(NVML_SUCCESS, nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, sets[3]));
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceRegisterEvents(device, 1ull << 60, sets[3]));
	EXPECT(NVML_ERROR_TIMEOUT, nvmlEventSetWait(sets[3], &data, 1));
	for (size_t i = 0; i < 128; i++)
		EXPECT(NVML_SUCCESS, nvmlEventSetFree(sets[i]));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetFree(sets[0]));
}

int main(void)
{
	unsigned int count = 0;
	nvmlDevice_t device = {0};
	pthread_t threads[4];
	nvmlEnableState_t current;
	unsigned int mode, pending;
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetMinorNumber(device, &count));
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetFanSpeed(device, &count));
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	EXPECT(NVML_SUCCESS, nvmlInit());
	EXPECT(NVML_SUCCESS, nvmlDeviceGetCount(&count));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(count, &device));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetHandleByIndex_v2(0, &device));
	short_buffers(device);
	null_arguments(device);
	wrong_versions(device);
	wild_handles(device);
	event_sets(device);
	exercise_clients(device);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, hammer, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* Of the nodes this runs on, the one whose first board has a fabric has such a board. */
	if (nvmlDeviceGetMigMode(device, &mode, &pending) == NVML_SUCCESS && nvmlDeviceGetNvLinkState(device, 17, &current) == NVML_SUCCESS)
		exercise_mig(device);
	EXPECT(NVML_SUCCESS, nvmlShutdown());
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	if (failures == 0)
		printf("%u\n", count);
	return failures != 0;
}

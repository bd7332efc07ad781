/*
 * The MIG part of the exercise: stale and wild handles, wrong versions and short arrays, and
 * threads that make and end instances beside others that read them.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exercise.h"

#define ONE_SLICE 19u
#define HALF 9u

static void wild_handles(nvmlDevice_t device)
{
	nvmlGpuInstance_t good;
	nvmlGpuInstanceInfo_t gi_info;
	nvmlComputeInstanceInfo_t ci_info;
	nvmlDevice_t parent;
	unsigned int count;
	EXPECT(NVML_SUCCESS, nvmlDeviceCreateGpuInstance(device, ONE_SLICE, &good));
	const uintptr_t wild[] = {0, 1, UINTPTR_MAX, (uintptr_t)&count, (uintptr_t)good.handle + 1, (uintptr_t)good.handle + (1u << 22), (uintptr_t)device.handle};
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		nvmlGpuInstance_t gi = {.handle = (struct nvmlGpuInstance_st *)wild[i]};
		nvmlComputeInstance_t ci = {.handle = (struct nvmlComputeInstance_st *)wild[i]};
		nvmlDevice_t mig = {.handle = (struct nvmlDevice_st *)wild[i]};
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetInfo(gi, &gi_info));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceDestroy(gi));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceGetInfo_v2(ci, &ci_info));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceDestroy(ci));
		EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &parent));
	}
	/* A handle next to a good one was never given out. */
	nvmlGpuInstance_t beside = {.handle = (struct nvmlGpuInstance_st *)((uintptr_t)good.handle + sizeof(uint32_t))};
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetInfo(beside, &gi_info));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceDestroy(good));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceDestroy(good));
}

static void bad_arguments(nvmlDevice_t device)
{
	nvmlGpuInstanceProfileInfo_v2_t profile = {.version = 7};
	nvmlComputeInstanceProfileInfo_v2_t compute = {.version = 7};
	nvmlGpuInstancePlacement_t placements[7];
	nvmlComputeInstancePlacement_t slices[3];
	nvmlGpuInstance_t gi;
	nvmlDevice_t mig;
	unsigned int count = 6;
	nvmlReturn_t status;
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, &profile));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetGpuInstanceProfileInfoByIdV(device, ONE_SLICE, &profile));
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetGpuInstancePossiblePlacements(device, ONE_SLICE, placements, &count));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, ONE_SLICE, NULL, &count));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, ONE_SLICE, placements, &count));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceSetMigMode(device, 1, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceSetMigMode(device, 3, &status));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstance(device, ONE_SLICE, NULL));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstanceWithPlacement(device, ONE_SLICE, NULL, &gi));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstances(device, ONE_SLICE, NULL, &count));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMigDeviceHandleByIndex(device, 7, &mig));
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mig));
	EXPECT(NVML_SUCCESS, nvmlDeviceCreateGpuInstance(device, HALF, &gi));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, 0, 0, &compute));
	compute.version = nvmlComputeInstanceProfileInfo_v2;
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, 0, &compute));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, 0, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT, &compute));
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE, 0, &compute));
	count = 2;
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, 0, slices, &count));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, 0, NULL, &count));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, 0, slices, &count));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceDestroy(gi));
}

/* What a MIG device answers as a device. */
static void mig_device(nvmlDevice_t device, nvmlDevice_t mig, unsigned int expected_gi)
{
	char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE], uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	nvmlDeviceAttributes_t attributes;
	nvmlMemory_t memory;
	nvmlMemory_v2_t memory2 = {.version = nvmlMemory_v2};
	nvmlComputeMode_t mode;
	nvmlDevice_t other;
	unsigned int number = 9, processes = 0;
	EXPECT(NVML_SUCCESS, nvmlDeviceIsMigDeviceHandle(mig, &number));
	EXPECT_NUMBER(1, number);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceId(mig, &number));
	EXPECT_NUMBER(expected_gi, number);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetComputeInstanceId(mig, &number));
	EXPECT_NUMBER(0, number);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetIndex(mig, &number));
	EXPECT_NUMBER(0, number);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &other));
	EXPECT_NUMBER(1, other.handle == device.handle);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetName(mig, text, sizeof(text)));
	EXPECT_NUMBER(0, strcmp(text, "NVIDIA H100 80GB HBM3 MIG 3g.40gb"));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetUUID(mig, uuid, sizeof(uuid)));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetHandleByUUID(uuid, &other));
	EXPECT_NUMBER(1, other.handle == mig.handle);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetAttributes(mig, &attributes));
	EXPECT_NUMBER(60, attributes.multiprocessorCount);
	EXPECT_NUMBER(3, attributes.gpuInstanceSliceCount);
	EXPECT_NUMBER(3, attributes.computeInstanceSliceCount);
	EXPECT_NUMBER(40448, attributes.memorySizeMB);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryInfo(mig, &memory));
	EXPECT_NUMBER(40448ull << 20, memory.total);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMemoryInfo_v2(mig, &memory2));
	EXPECT_NUMBER(40448ull << 20, memory2.free);
	EXPECT(NVML_SUCCESS, nvmlDeviceSetComputeMode(mig, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetComputeMode(mig, &mode));
	EXPECT_NUMBER(NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, mode);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetComputeRunningProcesses_v3(mig, &processes, NULL));
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetMinorNumber(mig, &number));
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstanceId(device, &number));
	EXPECT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetAttributes_v2(device, &attributes));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &other));
}

/* A handle is of the instance it was given out for, not of the next with its id. */
static void stale_handles(nvmlDevice_t device)
{
	nvmlGpuInstance_t gi;
	nvmlComputeInstance_t ci;
	nvmlGpuInstanceInfo_t info;
	nvmlComputeInstanceInfo_t ci_info;
	nvmlDevice_t mig;
	unsigned int number;
	EXPECT(NVML_SUCCESS, nvmlDeviceCreateGpuInstance(device, HALF, &gi));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(gi, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, &ci));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceGetInfo(gi, &info));
	EXPECT(NVML_SUCCESS, nvmlComputeInstanceGetInfo(ci, &ci_info));
	EXPECT_NUMBER(1, ci_info.gpuInstance.handle == gi.handle);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mig));
	mig_device(device, mig, info.id);
	EXPECT(NVML_ERROR_IN_USE, nvmlGpuInstanceDestroy(gi));
	EXPECT(NVML_SUCCESS, nvmlComputeInstanceDestroy(ci));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetIndex(mig, &number));
	EXPECT(NVML_SUCCESS, nvmlDeviceIsMigDeviceHandle(mig, &number));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceDestroy(ci));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(gi, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, &ci));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetIndex(mig, &number));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mig));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetIndex(mig, &number));
	EXPECT(NVML_SUCCESS, nvmlComputeInstanceDestroy(ci));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceDestroy(gi));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetInfo(gi, &info));
}

/* Another process ends instances and makes them anew under the same ids. */
static void replaced_elsewhere(nvmlDevice_t device)
{
	nvmlGpuInstance_t gi, again;
	nvmlComputeInstance_t ci, ci_again;
	nvmlGpuInstanceInfo_t info;
	nvmlComputeInstanceInfo_t ci_info;
	int exit_code = -1;
	EXPECT(NVML_SUCCESS, nvmlDeviceCreateGpuInstance(device, HALF, &gi));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci));
	pid_t child = fork();
	if (child == 0) {
		int failed = nvmlComputeInstanceDestroy(ci) != NVML_SUCCESS || nvmlGpuInstanceDestroy(gi) != NVML_SUCCESS ||
			nvmlDeviceCreateGpuInstance(device, HALF, &again) != NVML_SUCCESS ||
			nvmlGpuInstanceCreateComputeInstance(again, 0, &ci_again) != NVML_SUCCESS;
		_exit(failed);
	}
	waitpid(child, &exit_code, 0);
	EXPECT_NUMBER(0, (unsigned int)exit_code);
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetInfo(gi, &info));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceDestroy(gi));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceGetInfo_v2(ci, &ci_info));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceDestroy(ci));
	EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceById(device, 2, &again));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstanceById(again, 0, &ci_again));
	EXPECT(NVML_SUCCESS, nvmlComputeInstanceDestroy(ci_again));
	EXPECT(NVML_SUCCESS, nvmlGpuInstanceDestroy(again));
}

static nvmlDevice_t board;

static void *maker(void *argument)
{
	(void)argument;
	for (int round = 0; round < 60; round++) {
		nvmlGpuInstance_t gi;
		nvmlComputeInstance_t ci;
		nvmlReturn_t rc = nvmlDeviceCreateGpuInstance(board, round % 3 ? ONE_SLICE : HALF, &gi);
		if (rc == NVML_ERROR_INSUFFICIENT_RESOURCES)
			continue;
		expect("create beside others", rc, NVML_SUCCESS);
		EXPECT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci));
		EXPECT(NVML_SUCCESS, nvmlComputeInstanceDestroy(ci));
		EXPECT(NVML_SUCCESS, nvmlGpuInstanceDestroy(gi));
	}
	return NULL;
}

/* Reads what comes and goes: every answer is a good one or says that it is gone. */
static void *reader(void *argument)
{
	(void)argument;
	for (int round = 0; round < 200; round++) {
		nvmlGpuInstance_t gi;
		nvmlGpuInstanceInfo_t info;
		nvmlDevice_t mig;
		unsigned int left = 99;
		char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
		EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceRemainingCapacity(board, ONE_SLICE, &left));
		if (left > 7)
			expect("remaining capacity", NVML_ERROR_UNKNOWN, NVML_SUCCESS);
		if (nvmlDeviceGetGpuInstanceById(board, 13, &gi) == NVML_SUCCESS && nvmlGpuInstanceGetInfo(gi, &info) == NVML_SUCCESS &&
			(info.id != 13 || info.placement.start != 6 || info.profileId != ONE_SLICE))
			expect("instance 13 is another", NVML_ERROR_UNKNOWN, NVML_SUCCESS);
		if (nvmlDeviceGetMigDeviceHandleByIndex(board, 0, &mig) == NVML_SUCCESS)
			nvmlDeviceGetUUID(mig, uuid, sizeof(uuid));
	}
	return NULL;
}

void exercise_mig(nvmlDevice_t device)
{
	pthread_t threads[6];
	nvmlReturn_t status = NVML_ERROR_UNKNOWN;
	unsigned int left = 0;
	board = device;
	EXPECT(NVML_SUCCESS, nvmlDeviceSetMigMode(device, NVML_DEVICE_MIG_ENABLE, &status));
	expect("activation", status, NVML_SUCCESS);
	wild_handles(device);
	bad_arguments(device);
	stale_handles(device);
	replaced_elsewhere(device);
	for (int i = 0; i < 6; i++)
		pthread_create(&threads[i], NULL, i < 3 ? maker : reader, NULL);
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	EXPECT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceRemainingCapacity(device, ONE_SLICE, &left));
	EXPECT_NUMBER(7, left);
	EXPECT(NVML_SUCCESS, nvmlDeviceSetMigMode(device, NVML_DEVICE_MIG_DISABLE, &status));
}

/*
 * Answers about the driver as a whole.
 */
#include <string.h>

#include "sim.h"

SIM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	SIM_ENTER();
	return sim_copy_text(version, length, sim_state()->driver_version);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	SIM_ENTER();
	return sim_copy_text(version, length, sim_state()->nvml_version);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	SIM_ENTER();
	SIM_REQUIRE(version != NULL);
	*version = (int)sim_state()->cuda_version;
	return NVML_SUCCESS;
}
SIM_ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

SIM_EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
	SIM_ENTER();
	SIM_REQUIRE(info != NULL);
	if (info->version != nvmlSystemDriverBranchInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (length > sizeof(info->branch))
		length = sizeof(info->branch);
	return sim_copy_text(info->branch, length, sim_state()->driver_branch);
}

SIM_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	SIM_ENTER();
	SIM_REQUIRE(count != NULL);
	*count = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
	SIM_REQUIRE(count != NULL);
	*count = 0;
	return NVML_SUCCESS;
}

/*
 * Field values: the numbered side entrance to many of the other answers.
 */
#include <time.h>

#include "sim.h"

static long long now_usec(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static unsigned int switch_links(const struct sim_gpu *gpu)
{
	unsigned int count = 0;
	for (unsigned int i = 0; i < gpu->link_count && i < SIM_MAX_LINKS; i++)
		count += gpu->links[i].remote == SIM_REMOTE_SWITCH;
	return count;
}

static nvmlReturn_t set_uint(nvmlFieldValue_t *field, unsigned int value)
{
	field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	field->value.uiVal = value;
	return NVML_SUCCESS;
}

static nvmlReturn_t set_count(nvmlFieldValue_t *field, uint64_t value)
{
	field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	field->value.ullVal = value;
	return NVML_SUCCESS;
}

static nvmlReturn_t nvlink_field(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
	if (gpu->link_count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	switch (field->fieldId) {
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
		return set_uint(field, gpu->link_count);
	case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
		return set_uint(field, switch_links(gpu));
	case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
		return set_uint(field, gpu->link_speed_mbps);
	default:
		break;
	}
	/* What is left is about one link. */
	if (field->scopeId >= gpu->link_count || field->scopeId >= SIM_MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	int active = sim_load(&gpu->links[field->scopeId].active) != 0;
	switch (field->fieldId) {
	case NVML_FI_DEV_NVLINK_GET_SPEED:
		return set_uint(field, active ? gpu->link_speed_mbps : 0);
	case NVML_FI_DEV_NVLINK_GET_STATE:
		return set_uint(field, active);
	default:
		return set_uint(field, gpu->link_version);
	}
}

static nvmlReturn_t ecc_field(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
	if (sim_lacks(gpu, SIM_FEATURE_ECC))
		return NVML_ERROR_NOT_SUPPORTED;
	switch (field->fieldId) {
	case NVML_FI_DEV_ECC_CURRENT:
		return set_uint(field, sim_load(&gpu->ecc_current));
	case NVML_FI_DEV_ECC_PENDING:
		return set_uint(field, sim_load(&gpu->ecc_pending));
	case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
		return set_count(field, gpu->health.ecc_corrected_volatile);
	case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
		return set_count(field, gpu->health.ecc_uncorrected_volatile);
	case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
		return set_count(field, gpu->health.ecc_corrected_aggregate);
	default:
		return set_count(field, gpu->health.ecc_uncorrected_aggregate);
	}
}

static nvmlReturn_t read_field(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
	switch (field->fieldId) {
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
	case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
	case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
	case NVML_FI_DEV_NVLINK_GET_SPEED:
	case NVML_FI_DEV_NVLINK_GET_STATE:
	case NVML_FI_DEV_NVLINK_GET_VERSION:
		return nvlink_field(gpu, field);
	case NVML_FI_DEV_ECC_CURRENT:
	case NVML_FI_DEV_ECC_PENDING:
	case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
	case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
	case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
	case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
		return ecc_field(gpu, field);
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
		if (sim_lacks(gpu, SIM_FEATURE_RECOVERY_ACTION))
			return NVML_ERROR_NOT_SUPPORTED;
		return set_uint(field, sim_load(&gpu->recovery_action));
	case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
		return set_uint(field, gpu->mig.capable && !gpu->mig.needs_reset);
	case NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
		return set_uint(field, gpu->mig.capable);
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(values != NULL && count > 0);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = now_usec();
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = read_field(gpu, &values[i]);
	}
	return NVML_SUCCESS;
}

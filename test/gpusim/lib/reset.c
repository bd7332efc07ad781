/*
 * What the driver's own tools can do and nvml.h does not say: a table of further functions,
 * behind the entry that the real library has for them too.
 */
#include <string.h>

#include "mig.h"

SIM_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

/* Ends what a reset ends: instances, pending modes, what the board needed it for. */
static nvmlReturn_t reset(nvmlDevice_t device)
{
	struct sim_gpu *gpu = NULL;
	nvmlReturn_t rc = sim_enter_device("nvmlDeviceReset", device, &gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	rc = sim_mig_begin(gpu);
	if (rc != NVML_SUCCESS)
		return rc;
	if (sim_mig_clients(gpu, SIM_NO_INSTANCE, SIM_NO_INSTANCE)) {
		rc = NVML_ERROR_IN_USE;
	} else {
		sim_mig_clear(gpu);
		sim_store(&gpu->mig.current_mode, sim_load(&gpu->mig.pending_mode));
		sim_store(&gpu->ecc_current, sim_load(&gpu->ecc_pending));
		sim_store(&gpu->recovery_action, 0);
	}
	sim_mig_end(gpu);
	return rc;
}

static const struct {
	size_t size;
	nvmlReturn_t (*reset)(nvmlDevice_t device);
} functions = {sizeof(functions), reset};

SIM_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
	static const char known[16] = "gpusim-functions";
	SIM_REQUIRE(table != NULL && id != NULL);
	if (memcmp(id, known, sizeof(known)) != 0)
		return NVML_ERROR_NOT_FOUND;
	*table = &functions;
	return NVML_SUCCESS;
}

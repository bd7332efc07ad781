/*
 * What the driver's own tools can do and nvml.h does not say: a table of further functions,
 * behind the entry that the real library has for them too.
 */
#include <string.h>

#include "mig.h"
#include "private_table.h"
#include "registry.h"

SIM_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

/* Whether somebody else has the board open. Tools that arrange the node ask for programs on it alone. */
static int busy(const struct sim_gpu *gpu)
{
	return sim_mig_clients(gpu, SIM_NO_INSTANCE, SIM_NO_INSTANCE) || (!sim_immune() && sim_session_elsewhere(sim_slot(gpu)));
}

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
	if (busy(gpu)) {
		rc = NVML_ERROR_IN_USE;
	} else {
		sim_mig_clear(gpu);
		sim_store(&gpu->mig.current_mode, sim_load(&gpu->mig.pending_mode));
		sim_store(&gpu->ecc_current, sim_load(&gpu->ecc_pending));
		sim_store(&gpu->compute_mode, NVML_COMPUTEMODE_DEFAULT);
		sim_store(&gpu->time_slice, 0);
		sim_store(&gpu->recovery_action, 0);
		sim_store(&gpu->health.remap_pending, 0);
		gpu->health.ecc_corrected_volatile = 0;
		gpu->health.ecc_uncorrected_volatile = 0;
	}
	sim_mig_end(gpu);
	return rc;
}

static nvmlReturn_t nodes(char *path, size_t size)
{
	return sim_find_dev(path, size) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static nvmlReturn_t fault(const char *step, const nvmlDevice_t *device)
{
	struct sim_target target = {0};
	if (device == NULL)
		return sim_enter(step);
	return sim_enter_target(step, *device, &target);
}

static const struct gpusim_functions functions = {
	.size = sizeof(functions),
	.reset = reset,
	.fault = fault,
	.get_time_slice = sim_get_time_slice,
	.set_time_slice = sim_set_time_slice,
	.open = sim_client_open,
	.close = sim_client_close,
	.allocate = sim_client_allocate,
	.limit = sim_client_limit,
	.kind = sim_client_kind,
	.nodes = nodes,
};

SIM_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
	static const char known[16] = GPUSIM_TABLE;
	SIM_REQUIRE(table != NULL && id != NULL);
	if (memcmp(id, known, sizeof(known)) != 0)
		return NVML_ERROR_NOT_FOUND;
	*table = &functions;
	return NVML_SUCCESS;
}

/*
 * Internal interface of the simulated nvidia-smi: a small tool with the real one's
 * command line, that talks to whatever libnvidia-ml.so.1 the machine has.
 */
#ifndef SMI_H
#define SMI_H

#include "tool.h"

#define SMI_MAX_GPUS TOOL_MAX_GPUS

/* The most processes that a board reports. */
#define SMI_MAX_PROCESSES 320u

/* Exit codes beyond NVML's own numbers. */
#define SMI_USAGE 2
#define SMI_NO_DEVICES 6
#define SMI_NO_LIBRARY 12

/* One board as the commands get it. */
struct smi_gpu {
	unsigned int index;
	nvmlDevice_t device;
	/* Not NVML_SUCCESS when there is no handle. */
	nvmlReturn_t status;
};

struct smi_gpus {
	unsigned int count;
	struct smi_gpu list[SMI_MAX_GPUS];
};

/* gpus.c: loads and starts the library; 0, or the exit code of the tool. */
int smi_begin(void);

/* gpus.c: the boards that selector (-i) names, or all. */
int smi_select(const char *selector, struct smi_gpus *gpus);
int smi_report_lost(const struct smi_gpu *gpu);

/* The commands; each returns the exit code. */
int smi_list(const struct smi_gpus *gpus);
int smi_topo(const struct smi_gpus *gpus);
int smi_query(const struct smi_gpus *gpus, const char *fields, const char *format);
int smi_summary(const struct smi_gpus *gpus);
int smi_set_compute_mode(const struct smi_gpus *gpus, const char *mode);
int smi_set_persistence(const struct smi_gpus *gpus, const char *mode);
int smi_set_mig(const struct smi_gpus *gpus, const char *mode, int named);
int smi_reset(const struct smi_gpus *gpus);
int smi_mig(int argc, char **argv);
int smi_compute_policy(int argc, char **argv);
nvmlReturn_t smi_processes(const struct smi_gpu *gpu, nvmlProcessInfo_t *infos, unsigned int *count);
void smi_process_name(unsigned int pid, char *out, size_t size);
int smi_query_processes(const struct smi_gpus *gpus, const char *fields, const char *format);
const char *smi_compute_mode_name(nvmlComputeMode_t mode);

#endif

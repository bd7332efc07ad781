/*
 * The functions of private.h, as the library's files define them.
 */
#ifndef SIM_PRIVATE_TABLE_H
#define SIM_PRIVATE_TABLE_H

#include "private.h"
#include "sim.h"

/* timeslice.c */
nvmlReturn_t sim_get_time_slice(nvmlDevice_t device, unsigned int *slice);
nvmlReturn_t sim_set_time_slice(nvmlDevice_t device, unsigned int slice);

/* client.c */
nvmlReturn_t sim_client_open(nvmlDevice_t device, enum gpusim_kind kind);
nvmlReturn_t sim_client_close(nvmlDevice_t device);
nvmlReturn_t sim_client_allocate(nvmlDevice_t device, long long mib);
nvmlReturn_t sim_client_limit(nvmlDevice_t device, unsigned long long *bytes);
nvmlReturn_t sim_client_kind(nvmlDevice_t device, unsigned int pid, unsigned int *kind);

#endif

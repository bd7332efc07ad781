/*
 * How a process becomes a client; see client.h for what that means.
 */
#ifndef SIM_REGISTRY_H
#define SIM_REGISTRY_H

#include "client.h"

unsigned int sim_registered(unsigned int slot, struct sim_client clients[SIM_MAX_CLIENTS]);
const struct sim_client *sim_own_client(unsigned int slot);
int sim_register(unsigned int slot, const struct sim_client *client);
void sim_unregister(unsigned int slot);

/* The boards that the session of this process has open, and whether another one has a board open. */
void sim_session_hold(unsigned int slot);
void sim_session_release(void);
int sim_session_elsewhere(unsigned int slot);

#endif

/*
 * What the parts of the exercise share.
 */
#ifndef EXERCISE_H
#define EXERCISE_H

#include <nvml.h>

/* Counts and prints an answer that is not what it must be. */
void expect(const char *what, nvmlReturn_t got, nvmlReturn_t want);
void expect_number(const char *what, unsigned long long got, unsigned long long want);

#define EXPECT(want, call) expect(#call, call, want)
#define EXPECT_NUMBER(want, value) expect_number(#value, value, want)

/* exercise_mig.c: on a board with seven slices that changes its mode at once. */
void exercise_mig(nvmlDevice_t device);

/* exercise_clients.c: on a board that this process alone uses. */
void exercise_clients(nvmlDevice_t device);

#endif

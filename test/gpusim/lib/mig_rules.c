/*
 * Which instances can exist together: placements must not overlap, a profile has a number,
 * and engines are there in a number as well.
 *
 * How many engines a board has is not in its profiles. It is taken to be as many as the
 * most demanding set of equal instances needs, so that each profile reaches its number.
 */
#include <string.h>

#include "mig.h"

int sim_profile_by_id(const struct sim_mig *mig, unsigned int id)
{
	for (unsigned int i = 0; i < mig->profile_count; i++) {
		if (mig->profiles[i].profile_id == id)
			return (int)i;
	}
	return -1;
}

int sim_profile_by_enum(const struct sim_mig *mig, unsigned int number)
{
	for (unsigned int i = 0; i < mig->profile_count; i++) {
		if (mig->profiles[i].enum_id == number)
			return (int)i;
	}
	return -1;
}

static void engines_of(const struct sim_profile *profile, unsigned int engines[SIM_ENGINES])
{
	engines[0] = profile->copy_engines;
	engines[1] = profile->decoders;
	engines[2] = profile->encoders;
	engines[3] = profile->jpeg;
	engines[4] = profile->ofa;
	engines[5] = profile->slice_count;
}

static unsigned int pool(const struct sim_mig *mig, unsigned int engine)
{
	unsigned int most = 0, engines[SIM_ENGINES];
	for (unsigned int i = 0; i < mig->profile_count; i++) {
		engines_of(&mig->profiles[i], engines);
		unsigned int need = engines[engine] * mig->profiles[i].instance_count;
		most = need > most ? need : most;
	}
	return most;
}

static uint64_t mask(unsigned int start, unsigned int size)
{
	return (size < 64 ? ((uint64_t)1 << size) - 1 : UINT64_MAX) << start;
}

static void take(const struct sim_mig *mig, struct sim_usage *usage, unsigned int profile, unsigned int start)
{
	unsigned int engines[SIM_ENGINES];
	engines_of(&mig->profiles[profile], engines);
	for (unsigned int i = 0; i < SIM_ENGINES; i++)
		usage->engines[i] += engines[i];
	usage->units |= mask(start, mig->profiles[profile].size);
	usage->counts[profile]++;
}

void sim_usage_of(const struct sim_mig *mig, struct sim_usage *usage)
{
	memset(usage, 0, sizeof(*usage));
	for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++) {
		const struct sim_gpu_instance *gi = &mig->instances[id];
		unsigned int profile = sim_load(&gi->profile_index);
		if (sim_load(&gi->used) && profile < mig->profile_count)
			take(mig, usage, profile, sim_load(&gi->start));
	}
}

int sim_fits(const struct sim_mig *mig, const struct sim_usage *usage, int profile, unsigned int start)
{
	const struct sim_profile *p = &mig->profiles[profile];
	unsigned int engines[SIM_ENGINES];
	if (usage->counts[profile] >= p->instance_count || (usage->units & mask(start, p->size)) != 0)
		return 0;
	engines_of(p, engines);
	for (unsigned int i = 0; i < SIM_ENGINES; i++) {
		if (engines[i] > 0 && usage->engines[i] + engines[i] > pool(mig, i))
			return 0;
	}
	return 1;
}

/* How many more instances of a profile can be made. */
unsigned int sim_remaining(const struct sim_mig *mig, int profile)
{
	const struct sim_profile *p = &mig->profiles[profile];
	struct sim_usage usage;
	unsigned int count = 0;
	sim_usage_of(mig, &usage);
	for (unsigned int i = 0; i < p->placement_count; i++) {
		if (!sim_fits(mig, &usage, profile, p->placement_start[i]))
			continue;
		take(mig, &usage, (unsigned int)profile, p->placement_start[i]);
		count++;
	}
	return count;
}

/* The number of placements that are free now and would no longer be. */
static unsigned int blocks(const struct sim_mig *mig, const struct sim_usage *usage, unsigned int start, unsigned int size)
{
	unsigned int count = 0;
	for (unsigned int i = 0; i < mig->profile_count; i++) {
		const struct sim_profile *p = &mig->profiles[i];
		for (unsigned int j = 0; j < p->placement_count; j++) {
			if ((mask(p->placement_start[j], p->size) & mask(start, size)) != 0 &&
				sim_fits(mig, usage, (int)i, p->placement_start[j]))
				count++;
		}
	}
	return count;
}

/* Where the driver puts an instance whose place the caller leaves open: where it blocks
 * least, then lowest. This gives the order that seven instances get on real boards. */
int sim_choose(const struct sim_mig *mig, const struct sim_usage *usage, int profile, unsigned int *start)
{
	const struct sim_profile *p = &mig->profiles[profile];
	unsigned int least = 0;
	int found = 0;
	for (unsigned int i = 0; i < p->placement_count; i++) {
		if (!sim_fits(mig, usage, profile, p->placement_start[i]))
			continue;
		unsigned int cost = blocks(mig, usage, p->placement_start[i], p->size);
		if (found && cost >= least)
			continue;
		found = 1;
		least = cost;
		*start = p->placement_start[i];
	}
	return found;
}

// Package mig works out what a GPU can be cut into: the partitions that can exist, what each
// takes from its GPU, and which of them are possible beside what is there. It is for the device
// package, for the steps that make partitions and for benchmarks of their order. It is pure and
// knows no board: everything follows from the profiles and placements that NVML reports. It must
// not know claims, slices or how partitions are made; sub-package ledger remembers what this
// driver did.
//
// # Counters
//
// Every GPU has one counter set. Each memory slice is a counter of 1, so that partitions which
// overlap exclude each other; there are as many as the furthest placement reaches, which is not
// 8 on every board. Engines and memory are counters too: some profiles differ in nothing else
// (the one instance with media engines, say). A total is the largest amount of one profile times
// the number of its instances that NVML allows, and at least what any one profile has: figures
// of some boards say that a whole GPU has fewer decoders than its seven parts, and all seven
// exist. Where neither slices nor engines hold a profile to its number of instances, a counter
// of its own does.
//
// A partition consumes its memory slices, and only those engines that partitions side by side
// could use up: what cannot run out excludes nobody, and there are hundreds of partitions on a
// node. The whole GPU consumes everything.
//
// Compute slices are no counter: the placements leave no way to exceed them.
package mig

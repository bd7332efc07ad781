// Package migsteps makes and removes the partitions that claims get: handlers that say which
// steps a device needs and what its containers get, and executors that do and undo the steps.
// They are for the prepare engine, whose locks they rely on: one call at a time works on a GPU.
// The package must not know the API server, slices or go-nvml.
//
// A partition has two steps. "mig-mode" switches the GPU's MIG mode on where that takes no reset
// and nothing runs on the GPU; undone, it switches the mode off if this driver switched it on and
// no instance is left, whoever made it. "mig-instance" makes a GPU instance at its place and the
// compute instance that has all of it. A whole GPU whose mode this driver switched on, and could
// not switch off because something had the GPU open, has the step "mig-off".
//
// Instances of others are never destroyed: the ledger knows ours. It is written before an
// instance is made, so that a step which is repeated after a crash finds its own work, and undo
// does nothing to what was never ours. An instance of ours in the way of another is left over
// from a record that was lost, since no other claim may have its place; it is removed.
package migsteps

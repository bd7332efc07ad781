// Package mpssteps shares devices by MPS: it plans the step "mps" of a device whose claim asks for
// a control daemon, does and undoes it, and gives containers what they need to reach the daemon.
// It is for the prepare engine, whose locks it relies on: one call at a time works on a GPU.
//
// Claims that want the same of a device share its daemon. The first sets the compute mode that
// keeps everybody but the daemon off the device, having noted the mode before, and has the daemon
// started; the last has it ended and puts the mode back. A claim that wants something else is
// refused with the names of those that are there.
//
// Which claims use a device lies in a file for each, written before anything is done. It is not
// synced to the disk: a reboot ends daemons and compute modes, and the steps of the records that
// are left, done or undone, make it right again.
//
// The package must not know the API server, slices, go-nvml or how daemons are started.
package mpssteps

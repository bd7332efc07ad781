// Package supervisor has MPS control daemons running as the node plugin wants them: it starts
// them, gives them their limits, starts them again when they die, and ends them. It is for
// cmd/gpu-mps-daemon.
//
// A supervisor can be killed at any time: what must run lies in the daemons' directories, with
// the process that was given its limits. The next one adopts a process that is that one and
// answers, and starts every other daemon anew, so that none serves without its limits.
//
// What was wanted before a reboot is not started by itself: the kubelet prepares the claims that
// still need it again, and the others are gone.
//
// The package must not know claims, GPUs or the names of programs.
package supervisor

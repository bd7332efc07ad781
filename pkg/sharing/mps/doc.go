// Package mps is what the node plugin and the supervisor of MPS control daemons have in common:
// where things are on the node, what a daemon has to be, and the messages on the socket between
// the two, with its client. It is for package prepare/mpssteps and for cmd/gpu-mps-daemon.
//
// The plugin decides: it knows which claims use which device, and sets compute modes. The
// supervisor carries out: it has the daemons that it was told of running, until it is told that
// one is not needed any more. What it was told lies in the daemon's directory, so that it can be
// killed at any time.
//
// The package must not know claims, NVML or how a daemon is started.
package mps

// Package memlimit has the GPU driver hold claims to their share of a GPU's memory: the step
// "memory-limit" of a claim, the hook that containers with such a share get, and the socket on
// which the plugin answers it. It is for the prepare engine and the plugin's wiring.
//
// The driver limits a cgroup (see package memlimits), and a container's exists only when it is
// being created. So a claim's prepare checks that a limit is possible, and the hook sets it. Two
// containers would have the share once each; a share has one at a time.
//
// It must not know the API server, nor how a hook finds a container's cgroup.
package memlimit

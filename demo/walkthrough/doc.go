// Package walkthrough shows the driver's main job on one machine in half a minute, without
// Kubernetes and without a GPU: from a simulated node's NVML to a container that sees exactly the
// GPUs that its claim got. It is for the demo command, and its test is the shortest end-to-end
// test there is.
//
// The plugin is the real program, in a process of its own, spoken to over its real sockets; the
// scheduler's own library allocates; runc runs the containers. The API server and the kubelet are
// the stand-ins that tests use. What is shown is read from where a cluster would read it (slices,
// claims, CDI specs, the inside of a container) and checked, so a broken driver fails the demo.
//
// It must not know how the driver works inside: it imports none of its packages.
package walkthrough

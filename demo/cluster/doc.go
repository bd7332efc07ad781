// Package cluster shows the driver's main job on a real Kubernetes cluster of this machine: a
// claim for four GPUs in one NVLink domain, on a node whose GPUs are simulated. It is for the
// command democluster. It builds what is missing, says what it does and for how long, and checks
// what it shows, so that a broken driver fails the demonstration. It must not know how the driver
// works: it uses its image, its chart and the cluster's API.
package cluster

// Package e2e tests the driver on a real Kubernetes cluster of this machine, from its chart and
// its image, as its users get it. The tests have the build tag e2e, need root, and make what they
// need: the cluster, one simulated machine per node, the image. See README.md.
package e2e

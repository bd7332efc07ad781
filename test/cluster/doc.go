// Package cluster runs a real Kubernetes cluster as processes on one Linux machine: etcd, the
// control plane, and for each node a containerd and a kubelet. It is for end-to-end tests and
// demonstrations, through the command cmd/cluster or from Go. Several clusters can run side by
// side. It knows nothing of what is tested on it.
//
// Everything lives in one network namespace with addresses out of 198.18.0.0/15 (set aside for
// tests by RFC 2544), reachable from the machine and from nowhere else. Each node has a mount
// namespace, in which its own folders lie at the usual places (/var/lib/kubelet, /var/run/cdi
// and so on), so that an unchanged DaemonSet works on every node.
package cluster

// Package pods measures on a cluster on which the driver is installed: how long pods take to start, and how soon a pod's status
// says that its GPU fell ill. It is for cmd/bench. It must not know how the cluster was made.
package pods

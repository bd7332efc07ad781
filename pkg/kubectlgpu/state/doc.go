// Package state holds what the command line looks at: the DRA objects of a cluster, the pods and
// nodes around them, and an index of devices over them. It comes from a cluster, from saved files
// or from a preset, and everything above works on the same value, so that an answer can be
// reproduced from a support bundle. It must not know how anything is shown, and it never writes to
// a cluster.
package state

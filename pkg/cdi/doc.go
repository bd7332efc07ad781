// Package cdi writes Container Device Interface specs: one static base spec with what every
// container with a GPU needs (driver libraries, control nodes, hooks), and one small spec a
// claim with the device nodes of its devices. It is for the prepare and reconcile packages.
//
// Two rules hold for all of it. A device node is written with the numbers that it has on the
// host now, and only after it was seen there: a spec that names a node which is missing starts
// a container without its GPU. And no operation reads or writes anything of another claim: the
// work does not grow with the claims that live. (The CDI library's own writer parses every
// spec in the directory at each save, which is why it is not used here.)
//
// It must not know NVML, claims or the journal.
package cdi

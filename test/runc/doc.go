// Package runc runs one container the way a container runtime does for a pod with CDI devices: an OCI
// spec, the edits of the CDI devices injected by the CDI library, and runc, hooks included. Tests and
// the demo use it to look at a prepared claim from inside a container.
//
// It needs root, runc and, for [NewRootfs], busybox and a Debian system (Debian's packages runc and
// busybox-static will do); there is no network, no image and no registry. It works with cgroup v1 and
// v2, and without CAP_SYS_RESOURCE. It knows nothing of claims or of any driver.
package runc

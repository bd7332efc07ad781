// Package tenancy tells who has what of a node's devices: each prepared device with its UUID, its
// instances, its claims and their pods. It is for those who watch devices from outside and know them
// by UUID: exporters, which ask the endpoint, and the driver's own metrics. It must not know how
// devices are prepared, and asks the API server nothing: it is shown the claims that others read.
package tenancy

// Package hardware gives metrics of a node's devices: how each GPU is, what it does, and who has it.
// It is for the metrics endpoint. A scrape asks no hardware and no API server: it gets what was last
// read, with the time of that reading, so a GPU that hangs holds up nobody. Devices that are gone
// have no series. It must not know how devices are read or prepared.
package hardware

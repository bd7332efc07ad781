// Package nvml reads GPUs through NVIDIA's management library, and changes their partitions and
// modes. It is the NVML of a scan; package session below it opens the library and says what becomes
// of calls that hang, package names has NVML's numbers, and packages vitals and memlimits borrow the
// session for calls of their own. It must not know sysfs, Kubernetes or what a reading is used for.
//
// Readings exclude each other; they wait for their turn until their context ends. Operations on one
// GPU (MIG, SetMIGMode, Create…, Destroy…, Processes) run beside them and beside those on other GPUs,
// since making a partition takes its time.
package nvml

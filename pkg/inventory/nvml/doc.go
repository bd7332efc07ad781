// Package nvml reads GPUs through NVIDIA's management library, libnvidia-ml.so.1. It is the NVML
// of a scan, and with its sub-package names the only one of the driver that imports go-nvml: who
// needs the raw library (the CDI writer) borrows it with Library.Use. It must not know sysfs,
// Kubernetes or what a reading is used for.
//
// # One library for the life of a process
//
// go-nvml leaves NVML's symbols to the dynamic linker, which binds each to the first library that
// offers it and never lets go: neither Shutdown nor dlclose undoes that, and a second library
// loaded later is never called. So a process makes one Library. When the driver was replaced by
// another version, no call of this process can reach the new library: Read then fails with
// ReplacedError (inventory.ErrRestart), and the process has to be started anew. A kernel module
// that was reloaded below an unchanged library needs no restart.
//
// # Calls that hang
//
// A call into C cannot be cancelled. Each runs on a goroutine of its own and is waited for until
// the context ends or Options.CallTimeout passes; then its caller gets HungError
// (inventory.ErrHung) and the call is left behind. Until it returns, further calls about the
// same GPU fail at once; calls about other GPUs go on. When the call was about the library as a
// whole, all calls fail at once. While any call is left behind the library is neither closed nor
// opened again, since NVML must not be shut down under a running call. It heals when the call
// returns; the thread it occupies is lost until then.
//
// Operations (Read, Use, Close) exclude each other; they wait for their turn until their context
// ends. Those on one GPU (MIG, SetMIGMode, Create…, Destroy…, Processes) run beside them and
// beside those on other GPUs, since making a partition takes its time. Calls about one GPU are
// made one after the other.
package nvml

// Package session opens NVIDIA's management library, libnvidia-ml.so.1, keeps the process's one
// session with it, lends that, and makes calls in it under a watchdog. It is for package nvml, which
// reads and changes GPUs, and for who borrows the session to make calls of their own. It must not
// know what the calls are about.
//
// # One library for the life of a process
//
// go-nvml leaves NVML's symbols to the dynamic linker, which binds each to the first library that
// offers it and never lets go: neither Shutdown nor dlclose undoes that, and a second library
// loaded later is never called. So a process makes one Library. When the driver was replaced by
// another version, no call of this process can reach the new library: opening then fails with
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
// # Who waits for whom
//
// Who reads the node (Renewing), opens or closes has the turn and waits for it until its context
// ends. Borrow, Lend and Use run beside those and beside each other. Calls about one GPU are made
// one after the other.
package session

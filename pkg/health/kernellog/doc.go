// Package kernellog finds the errors of GPUs (XIDs) that the driver writes into the kernel's log, and
// tells those that it did not report through NVML as well: NVML tells nobody while it hangs or is
// reloaded, and not of a GPU that it could not register. It is for the agent, beside the source
// that asks NVML. It must not know what an error means.
//
// It reads records as /dev/kmsg gives them. That is the log of this boot, and reading begins at its
// end, so nothing old is told again. Only messages of the kernel itself count: what programs write
// into the log has another facility, so that nobody can have a GPU tainted by writing to it.
package kernellog

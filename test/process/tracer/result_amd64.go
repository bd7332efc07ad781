package tracer

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// skipCall makes the kernel pass over the call that the thread is about to enter.
func skipCall(tid int) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0)
	return unix.PtraceSetRegs(tid, &regs)
}

// setResult makes a call that was passed over fail.
func setResult(tid int, fail error) error {
	var errno syscall.Errno
	if !errors.As(fail, &errno) {
		return fail
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Rax = uint64(-int64(errno))
	return unix.PtraceSetRegs(tid, &regs)
}

package session

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
)

// CallError is an error code that NVML returned.
type CallError struct {
	// Call is the C function.
	Call string
	// Code is its nvmlReturn_t, Text the library's own words for it.
	Code int
	Text string
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s (code %d)", e.Call, e.Text, e.Code) }

// Is maps NVML's codes to what a caller decides on.
func (e *CallError) Is(target error) bool {
	switch nvml.Return(e.Code) {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return target == inventory.ErrNotSupported
	case nvml.ERROR_GPU_IS_LOST:
		return target == inventory.ErrLost
	case nvml.ERROR_IN_USE:
		return target == inventory.ErrInUse
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return target == inventory.ErrNoRoom
	case nvml.ERROR_NOT_FOUND:
		return target == inventory.ErrNoSuchGPU
	case nvml.ERROR_RESET_REQUIRED:
		return target == inventory.ErrNeedsReset
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return target == errEnded || target == inventory.ErrNoDriver
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return target == errEnded
	}
	return false
}

// Failure makes the error of a return code, nil for success. It asks the library for the text,
// so it belongs inside a watched call.
func Failure(call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &CallError{Call: call, Code: int(ret), Text: ret.Error()}
}

// TransientError is a failure to answer about the node in an open session: the driver is there.
type TransientError struct{ Cause error }

func (e *TransientError) Error() string { return e.Cause.Error() }

// Is makes the error an inventory.ErrTransient.
func (e *TransientError) Is(target error) bool { return target == inventory.ErrTransient }

func (e *TransientError) Unwrap() error { return e.Cause }

// Passing marks what NVML returned about the node as transient, unless it says that the driver is gone, may not
// be asked or cannot answer that at all.
func Passing(err error) error {
	var failed *CallError
	if !errors.As(err, &failed) || errors.Is(err, errEnded) || errors.Is(err, inventory.ErrNotSupported) ||
		nvml.Return(failed.Code) == nvml.ERROR_NO_PERMISSION {
		return err
	}
	return &TransientError{Cause: err}
}

// Ended tells whether one of the errors says that the session has ended.
func Ended(errs ...error) bool { return errors.Is(errors.Join(errs...), errEnded) }

// HasCode tells whether an error is a call's that returned the code.
func HasCode(err error, code Return) bool {
	var failed *CallError
	return errors.As(err, &failed) && nvml.Return(failed.Code) == code
}

// HungError tells that a call did not come back in time, now or earlier.
type HungError = watchdog.HungError

// ReplacedError tells that the library this process is bound to stopped working and that
// another one lies in its place.
type ReplacedError struct {
	Bound, Found string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("the driver was replaced: this process is bound to %s and cannot use %s; start it anew", e.Bound, e.Found)
}

// Is makes the error an inventory.ErrRestart.
func (e *ReplacedError) Is(target error) bool { return target == inventory.ErrRestart }

// UnusableError tells that the library is there but cannot be used.
type UnusableError struct {
	Path string
	// Advice says what to do; empty where the cause says it all.
	Advice string
	Cause  error
}

func (e *UnusableError) Error() string {
	if e.Advice == "" {
		return fmt.Sprintf("%s cannot be used: %v", e.Path, e.Cause)
	}
	return fmt.Sprintf("%s cannot be used: %v: %s", e.Path, e.Cause, e.Advice)
}

func (e *UnusableError) Unwrap() error { return e.Cause }

// adviceFor says what helps when NVML cannot be initialised.
func adviceFor(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and loaded kernel module are of different versions; reload the module or reboot the node"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA kernel module is not loaded or its device nodes are missing"
	case nvml.ERROR_NO_PERMISSION:
		return "the device nodes /dev/nvidia* may not be opened; the container has to be privileged"
	}
	return ""
}

package prepare

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ErrSuperseded is the cause with which a prepare ends when an unprepare of the same claim
// arrives while it runs.
var ErrSuperseded = errors.New("the claim is being unprepared")

// HeldError tells that another claim still has a device. It resolves itself when that claim is
// unprepared; the kubelet tries again.
type HeldError struct {
	Device string
	// Holder has the device; its namespace and name are empty where only the UID is known.
	Holder claims.Ref
	Waited time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("device %s is still prepared for claim %s/%s (UID %s), waited %s: its pod is not torn down yet. "+
		"This is tried again; if that pod is gone for good, see \"A claim is held by another\" in docs/troubleshooting.md",
		e.Device, e.Holder.Namespace, e.Holder.Name, e.Holder.UID, e.Waited.Round(time.Millisecond))
}

// SwappedError tells that the GPU at a device's address is not the one that the claim was
// prepared on: the board was replaced.
type SwappedError struct {
	Device   string
	PCI      pci.Address
	Was, Now string
}

func (e *SwappedError) Error() string {
	return fmt.Sprintf("device %s at %s is GPU %s now, but the claim was prepared on GPU %s: the board was replaced; "+
		"delete the pod and its claim so that a device is allocated anew", e.Device, e.PCI, e.Now, e.Was)
}

// StepError is a step that failed.
type StepError struct {
	// Kind is the step's, "mig-create"; Undo tells that it was being undone.
	Kind   string
	Undo   bool
	Device string
	Err    error
}

func (e *StepError) Error() string {
	verb := "do"
	if e.Undo {
		verb = "undo"
	}
	return strings.Join([]string{verb, e.Kind, "for device", e.Device + ":", e.Err.Error()}, " ")
}

func (e *StepError) Unwrap() error { return e.Err }

package migsteps

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// InUseError tells that something still uses what is to be removed or switched. It resolves
// itself when the programs end; the caller tries again.
type InUseError struct {
	GPU inventory.GPUID
	// What is "compute instance 0 of GPU instance 7", say.
	What string
	// Users are the programs that NVML knows; it does not know those that only hold a handle,
	// such as monitoring agents.
	Users []inventory.Process
	Err   error
}

func (e *InUseError) Error() string {
	users := "NVML names no program: a monitoring agent may hold it"
	if len(e.Users) > 0 {
		var pids []string
		for _, u := range e.Users {
			pids = append(pids, strconv.Itoa(u.PID))
		}
		users = "by processes " + strings.Join(pids, ", ")
	}
	return fmt.Sprintf("%s of GPU %s is in use (%s): %v", e.What, e.GPU.PCI, users, e.Err)
}

func (e *InUseError) Unwrap() error { return e.Err }

// TakenError tells that instances which this driver did not make are where one was to be made.
// They came after the device was published, and at the next look at the hardware the device goes.
type TakenError struct {
	GPU    inventory.GPUID
	Wanted inventory.MIGPlacement
	By     []inventory.MIGInstance
}

func (e *TakenError) Error() string {
	var places []string
	for _, i := range e.By {
		places = append(places, fmt.Sprintf("instance %d at %s", i.ID, i.Placement))
	}
	slices.Sort(places)
	return fmt.Sprintf("memory slices %s of GPU %s are taken by what another tool made (%s): "+
		"remove it, or delete the pod and its claim so that another device is allocated",
		e.Wanted, e.GPU.PCI, strings.Join(places, ", "))
}

// MismatchError tells that what was made is not what was asked for.
type MismatchError struct {
	GPU inventory.GPUID
	// Wanted and Found describe the instance.
	Wanted, Found string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("GPU %s has %s where %s was made", e.GPU.PCI, e.Found, e.Wanted)
}

// ModeError tells that the GPU's MIG mode is not what a device needs.
type ModeError struct {
	GPU inventory.GPUID
	// Reason says what stands in the way.
	Reason string
	Err    error
}

func (e *ModeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("MIG mode of GPU %s: %s", e.GPU.PCI, e.Reason)
	}
	return fmt.Sprintf("MIG mode of GPU %s: %s: %v", e.GPU.PCI, e.Reason, e.Err)
}

func (e *ModeError) Unwrap() error { return e.Err }

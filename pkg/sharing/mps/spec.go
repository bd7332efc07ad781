package mps

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// Spec says what one control daemon has to be. Values are never changed.
type Spec struct {
	// Devices are what its clients see, in this order.
	Devices []Device `json:"devices"`
	// ActiveThreadPercentage is the share of a device's threads that each client may use, 0 to
	// 100; nil leaves it to the daemon, which means all.
	ActiveThreadPercentage *int `json:"activeThreadPercentage,omitzero"`
	// MultiUser lets clients of several users in at once.
	MultiUser bool `json:"multiUser,omitzero"`
}

// Device is one device of a daemon.
type Device struct {
	// UUID is NVML's, "GPU-…" or "MIG-…".
	UUID string `json:"uuid"`
	// PinnedMemoryMiB is each client's limit of memory on the device; 0 is no limit.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitzero"`
}

// Equal tells whether a daemon that is one is the other as well.
func (s Spec) Equal(other Spec) bool {
	percentage := func(s Spec) int {
		if s.ActiveThreadPercentage == nil {
			return -1
		}
		return *s.ActiveThreadPercentage
	}
	return slices.Equal(s.Devices, other.Devices) && percentage(s) == percentage(other) && s.MultiUser == other.MultiUser
}

// maxDevices is far more than a node has.
const maxDevices = 128

// uuid keeps what is not NVML's out of variables and commands of a daemon.
var uuid = regexp.MustCompile(`^(GPU|MIG)-[A-Za-z0-9./-]{1,120}$`)

// Validate tells what of the spec no daemon can be.
func (s Spec) Validate() error {
	var errs []error
	if len(s.Devices) == 0 || len(s.Devices) > maxDevices {
		errs = append(errs, fmt.Errorf("devices: %d of them: give 1 to %d", len(s.Devices), maxDevices))
	}
	for i, d := range s.Devices {
		if !uuid.MatchString(d.UUID) {
			errs = append(errs, fmt.Errorf("devices[%d].uuid: %q is no UUID of a GPU or a MIG device", i, d.UUID))
		}
		if d.PinnedMemoryMiB < 0 {
			errs = append(errs, fmt.Errorf("devices[%d].pinnedMemoryMiB: %d is below 0", i, d.PinnedMemoryMiB))
		}
	}
	if p := s.ActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, fmt.Errorf("activeThreadPercentage: %d is not from 0 to 100", *p))
	}
	return errors.Join(errs...)
}

// name is that of a device in the pool, a DNS label: it becomes a directory.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName tells whether a daemon can have the name: that of its device in the node's pool.
func CheckName(daemon string) error {
	if !name.MatchString(daemon) {
		return fmt.Errorf("name: %q is no name of a device", daemon)
	}
	return nil
}

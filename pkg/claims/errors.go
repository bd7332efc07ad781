package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
)

// Reason says why a claim has no plan. The set is closed, for metrics and Events.
type Reason string

// The reasons.
const (
	// ReasonNotAllocated: the scheduler has not given the claim anything (any more).
	ReasonNotAllocated Reason = "NotAllocated"
	// ReasonUnknownDevice: the device is not in the pool, for now.
	ReasonUnknownDevice Reason = "UnknownDevice"
	// ReasonConfig: a configuration that applies cannot be read or is not valid.
	ReasonConfig Reason = "InvalidConfig"
	// ReasonWrongKind: a configuration names a request whose device is of another type.
	ReasonWrongKind Reason = "WrongConfigKind"
	// ReasonAdminSharing: an admin access request carries sharing settings.
	ReasonAdminSharing Reason = "SharingForAdminAccess"
	// ReasonConflict: two devices of the claim are the same hardware.
	ReasonConflict Reason = "ConflictingDevices"
	// ReasonSharing: the node cannot share devices in this way.
	ReasonSharing Reason = "SharingUnavailable"
)

// Retryable tells whether the same claim may have a plan later although nobody changes it. All
// other reasons stay until the claim is replaced, so that trying again only delays the message.
func (r Reason) Retryable() bool { return r == ReasonNotAllocated || r == ReasonUnknownDevice }

// Error is why one claim has no plan. The message names the request, what is wrong and what to
// do; the claim itself is known to whoever asked.
type Error struct {
	Reason Reason
	// Request and Device are empty where the reason is not about one result.
	Request string
	Device  string
	// Known are the names in the pool, sorted, for ReasonUnknownDevice.
	Known []string
	Err   error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Request == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("request %q: %v", e.Request, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Permanent tells whether err holds, joined with others or wrapped, a reason that goes away
// only with the claim. Errors that are not of this package are not permanent.
func Permanent(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), Permanent)
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // the function walks the tree itself
		return !e.Reason.Retryable()
	}
	cause := errors.Unwrap(err)
	return cause != nil && Permanent(cause)
}

func notAllocated() error {
	return &Error{Reason: ReasonNotAllocated, Err: errors.New("the claim is not allocated: it was released, or the scheduler is not done with it")}
}

// shownNames bounds how many names of a pool a message lists: with MIG there are hundreds.
const shownNames = 16

func unknownDevice(request, name, pool string, known []string) error {
	list := strings.Join(known[:min(len(known), shownNames)], ", ")
	switch {
	case len(known) == 0:
		list = "none"
	case len(known) > shownNames:
		list = fmt.Sprintf("%s and %d more", list, len(known)-shownNames)
	}
	return &Error{
		Reason: ReasonUnknownDevice, Request: request, Device: name, Known: known,
		Err: fmt.Errorf("device %q is not in pool %q now (there are: %s); if the GPU does not come back, delete the pod so that its claim is allocated again",
			name, pool, list),
	}
}

// Sharing says which ways of sharing a node has.
type Sharing struct {
	TimeSlicing bool
	MPS         bool
}

// Check returns an error where the plan asks for a way of sharing that the node does not have.
// Ignoring the settings would hand out more than was asked for.
func (s Sharing) Check(plan Plan) error {
	for _, d := range plan.Devices {
		switch {
		case d.Settings.TimeSlice != "" && !s.TimeSlicing:
			return sharingUnavailable(d, configapi.TimeSlicing)
		case d.Settings.MPS != nil && !s.MPS:
			return sharingUnavailable(d, configapi.MPS)
		}
	}
	return nil
}

func sharingUnavailable(d Device, strategy configapi.SharingStrategy) error {
	return &Error{
		Reason: ReasonSharing, Request: d.Request, Device: d.Device.Name(),
		Err: fmt.Errorf("sharing.strategy %q is valid, but it is switched off on this node: leave out sharing in the config of the claim or its DeviceClass, or switch it on in the driver's settings",
			strategy),
	}
}

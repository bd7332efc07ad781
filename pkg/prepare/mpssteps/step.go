package mpssteps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// Hardware is the GPU driver, as the step needs it. Errors wrap those of package inventory.
type Hardware interface {
	MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
	// ComputeMode and SetComputeMode are about the GPU, or the MIG device of that UUID on it.
	ComputeMode(ctx context.Context, gpu inventory.GPUID, partition string) (inventory.ComputeMode, error)
	SetComputeMode(ctx context.Context, gpu inventory.GPUID, partition string, mode inventory.ComputeMode) error
}

// Daemons has control daemons running; mps.Client is one.
type Daemons interface {
	Ensure(ctx context.Context, name string, spec mps.Spec) error
	Stop(ctx context.Context, name string) error
}

// ConflictError tells that a device is shared in another way than a claim wants. It resolves
// itself when the claims that use it are gone; the kubelet tries again.
type ConflictError struct {
	Device      string
	Wanted, Has Setting
	// Holders are the claims that use the device, as namespace/name.
	Holders []string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("device %s has an MPS control daemon with other settings: this claim wants %s, and the daemon has %s for %s; "+
		"use equal settings, or wait until those claims are gone", e.Device, e.Wanted, e.Has, strings.Join(e.Holders, ", "))
}

// NotReadyError tells that a device has no control daemon that serves. Trying again can help.
type NotReadyError struct {
	Device string
	Waited time.Duration
	Err    error
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("the MPS control daemon of device %s did not get ready in %s: %v; it is tried again", e.Device, e.Waited.Round(time.Millisecond), e.Err)
}

func (e *NotReadyError) Unwrap() error { return e.Err }

// The bounds of a call to the supervisor: with the rollback under the kubelet's 45 s.
const (
	readyTime = 25 * time.Second
	stopTime  = 12 * time.Second
)

// Step does the step "mps".
type Step struct {
	Hardware Hardware
	Daemons  Daemons
	Layout   mps.Layout
	// Known tells whether a claim has a record: users whose claim has none do not count.
	Known func(types.UID) bool
}

// output is what the step gave.
type output struct {
	UUID string `json:"uuid"`
}

// Do makes the claim a user of the device's daemon. Errors to tell apart: *ConflictError,
// *NotReadyError.
func (s Step) Do(ctx context.Context, raw jsontext.Value) (jsontext.Value, error) {
	p, err := decode(raw)
	if err != nil {
		return nil, err
	}
	uuid, err := s.uuid(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := s.enter(ctx, p, uuid); err != nil {
		return nil, err
	}
	start := time.Now()
	limit, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if err := s.Daemons.Ensure(limit, p.daemon(), p.spec(uuid)); err != nil {
		return nil, &NotReadyError{Device: p.Device, Waited: time.Since(start), Err: err}
	}
	return json.Marshal(output{UUID: uuid})
}

// uuid finds the UUID that CUDA has for the device.
func (s Step) uuid(ctx context.Context, p params) (string, error) {
	if p.Place == nil {
		return p.GPUUUID, nil
	}
	state, err := s.Hardware.MIG(ctx, p.gpu())
	if err != nil {
		return "", err
	}
	for _, i := range state.Instances {
		if i.Placement == (inventory.MIGPlacement{Start: p.Place.Start, Size: p.Place.Size}) && len(i.Compute) > 0 {
			return i.Compute[0].UUID, nil
		}
	}
	return "", fmt.Errorf("there is no partition at %d:%d of GPU %s: %w", p.Place.Start, p.Place.Size, p.PCI, inventory.ErrNoSuchGPU)
}

// enter notes the user, and the compute mode before it is changed.
func (s Step) enter(ctx context.Context, p params, uuid string) error {
	l := ledger{s.Layout}
	e, _, err := l.read(p.Device)
	if err != nil {
		return err
	}
	s.dropUnknown(&e, p.user())
	delete(e.Users, p.user())
	if len(e.Users) > 0 && !same(e.Where.Setting, p.Setting) {
		return &ConflictError{Device: p.Device, Wanted: p.Setting, Has: e.Where.Setting, Holders: e.names()}
	}
	e.Where, e.Users[p.user()] = p, p.Claim
	mode, err := s.Hardware.ComputeMode(ctx, p.gpu(), partition(p, uuid))
	if errors.Is(err, inventory.ErrNotSupported) {
		// Such a device has no mode that could keep others off: clients find the daemon all the same.
		return l.write(p.Device, e)
	}
	if err != nil {
		return err
	}
	if e.Before == nil {
		e.Before = &mode
	}
	if err := l.write(p.Device, e); err != nil || mode == inventory.ComputeExclusiveProcess {
		return err
	}
	err = s.Hardware.SetComputeMode(ctx, p.gpu(), partition(p, uuid), inventory.ComputeExclusiveProcess)
	if errors.Is(err, inventory.ErrNotSupported) && p.Place != nil {
		return nil
	}
	return err
}

// partition names the device within its GPU.
func partition(p params, uuid string) string {
	if p.Place == nil {
		return ""
	}
	return uuid
}

// dropUnknown drops users that have no record any more, except one.
func (s Step) dropUnknown(e *entry, except string) {
	for user, h := range e.Users {
		if user != except && !s.Known(h.UID) {
			delete(e.Users, user)
		}
	}
}

// Undo takes the user out. The last one ends the daemon and puts the compute mode back.
func (s Step) Undo(ctx context.Context, raw, _ jsontext.Value) error {
	p, err := decode(raw)
	if err != nil {
		return err
	}
	l := ledger{s.Layout}
	e, found, err := l.read(p.Device)
	if err != nil || !found {
		return err
	}
	delete(e.Users, p.user())
	s.dropUnknown(&e, "")
	if len(e.Users) > 0 {
		return l.write(p.Device, e)
	}
	return s.release(ctx, p, e)
}

// release ends the daemon of a device without users and puts the compute mode back.
func (s Step) release(ctx context.Context, p params, e entry) error {
	l := ledger{s.Layout}
	if err := s.stop(ctx, p.daemon()); err != nil {
		return err
	}
	err := s.restore(ctx, p, e)
	if errors.Is(err, inventory.ErrNoDriver) || errors.Is(err, inventory.ErrLost) {
		// No pod must wait for a GPU or its driver. The mode is put back when they are there: a GPU
		// that comes back without a reset may have kept it.
		return l.write(p.Device, e)
	}
	if err != nil {
		return err
	}
	return l.remove(p.Device)
}

// stop ends a daemon. With nothing alive that could run one, there is none: then it is enough that
// no supervisor to come starts it.
func (s Step) stop(ctx context.Context, daemon string) error {
	alive, err := s.Layout.Alive()
	if err != nil {
		return err
	}
	if !alive {
		if err := os.Remove(s.Layout.Daemon(daemon).Spec()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("forget MPS control daemon %s: %w", daemon, err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	return s.Daemons.Stop(ctx, daemon)
}

// restore puts the compute mode back, unless somebody else has changed it since or the device is
// gone: with it went the mode.
func (s Step) restore(ctx context.Context, p params, e entry) error {
	if e.Before == nil || *e.Before == inventory.ComputeExclusiveProcess {
		return nil
	}
	uuid, err := s.uuid(ctx, p)
	if err != nil {
		return unlessGone(err)
	}
	mode, err := s.Hardware.ComputeMode(ctx, p.gpu(), partition(p, uuid))
	if err != nil || mode != inventory.ComputeExclusiveProcess {
		return unlessGone(err)
	}
	return unlessGone(s.Hardware.SetComputeMode(ctx, p.gpu(), partition(p, uuid), *e.Before))
}

func unlessGone(err error) error {
	if slices.ContainsFunc([]error{inventory.ErrNoSuchGPU, inventory.ErrNotSupported}, func(target error) bool { return errors.Is(err, target) }) {
		return nil
	}
	return err
}

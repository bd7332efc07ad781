package migsteps

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
)

// Mode does the step "mig-mode".
type Mode struct {
	Hardware Modes
	Users    Users
	Ledger   *ledger.Ledger
	// Patience is how long programs may take to let go of the GPU; see DefaultPatience.
	Patience time.Duration
	// Changed is told after each switch: a GPU may have another minor number. It must not block.
	Changed func()
}

// Do switches the mode on unless it is. *ModeError tells that it needs a reset, *InUseError that
// something runs on the GPU.
func (e Mode) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	p, err := decode[gpuParams](KindMode, params)
	if err != nil {
		return nil, err
	}
	gpu := p.gpu()
	state, err := e.Hardware.MIG(ctx, gpu)
	switch {
	case err != nil:
		return nil, err
	case state.Enabled:
		return nil, nil
	case state.PendingEnabled:
		return nil, &ModeError{GPU: gpu, Reason: "somebody asked for it to be switched on, and the GPU has to be reset for that"}
	}
	if err := e.Ledger.SetMode(gpu, true); err != nil {
		return nil, err
	}
	if err := e.switchMode(ctx, gpu, true); err != nil {
		return nil, err
	}
	return nil, nil
}

// switchMode waits until nothing runs on the GPU and switches. Where the switch is refused, the
// mode that is pending is taken back, and on is not ours.
func (e Mode) switchMode(ctx context.Context, gpu inventory.GPUID, on bool) error {
	var users []inventory.Process
	err := untilFree(ctx, e.Patience, func() (err error) {
		if users, err = e.Users.Processes(ctx, gpu); err != nil {
			return err
		}
		if len(users) > 0 {
			return inventory.ErrInUse
		}
		return e.Hardware.SetMIGMode(ctx, gpu, on)
	})
	if err == nil {
		err = e.confirm(ctx, gpu, on)
	}
	if err == nil {
		e.Changed()
		return nil
	}
	refused := errors.Is(err, inventory.ErrInUse) || errors.Is(err, inventory.ErrNeedsReset)
	if refused {
		if back := e.takeBack(ctx, gpu, on); back != nil {
			return errors.Join(err, back)
		}
	}
	switch {
	case errors.Is(err, inventory.ErrInUse):
		return &InUseError{GPU: gpu, What: "the whole", Users: users, Err: err}
	case errors.Is(err, inventory.ErrNeedsReset):
		return &ModeError{GPU: gpu, Reason: "it can only be switched with a reset of the GPU, which this driver does not do", Err: err}
	}
	return err
}

// confirm reads the mode back.
func (e Mode) confirm(ctx context.Context, gpu inventory.GPUID, on bool) error {
	state, err := e.Hardware.MIG(ctx, gpu)
	if err == nil && state.Enabled != on {
		err = &ModeError{GPU: gpu, Reason: "the driver took the switch and the mode is as it was"}
	}
	return err
}

// takeBack asks for the mode that is in force, so that no later reset changes it.
func (e Mode) takeBack(ctx context.Context, gpu inventory.GPUID, on bool) error {
	state, err := e.Hardware.MIG(ctx, gpu)
	if err != nil {
		return err
	}
	if state.PendingEnabled != state.Enabled {
		if err := e.Hardware.SetMIGMode(ctx, gpu, state.Enabled); err != nil {
			return err
		}
	}
	if on && !state.Enabled {
		return e.Ledger.SetMode(gpu, false)
	}
	return nil
}

// Undo switches the mode off if we switched it on and no instance is left. A GPU that something
// holds open stays in MIG mode: partitions of it can be had as before, and the whole GPU
// switches it off when it is asked for.
func (e Mode) Undo(ctx context.Context, params, _ jsontext.Value) error {
	p, err := decode[gpuParams](KindMode, params)
	if err != nil {
		return err
	}
	err = e.off(ctx, p.gpu())
	if busy := new(InUseError); errors.As(err, &busy) {
		klog.FromContext(ctx).Info("The GPU stays in MIG mode for now", "gpu", p.PCI, "reason", busy.Error())
		return nil
	}
	return err
}

// off switches the mode off if it is ours and nobody lives there.
func (e Mode) off(ctx context.Context, gpu inventory.GPUID) error {
	entry, err := e.Ledger.Read(gpu)
	if err != nil || !entry.Mode {
		return err
	}
	state, err := e.Hardware.MIG(ctx, gpu)
	switch {
	case errors.Is(err, inventory.ErrNoDriver):
		return nil // the ledger still knows
	case err != nil && !gone(err):
		return err
	case err == nil && len(state.Instances) > 0:
		return nil
	case err == nil && state.Enabled:
		if err := e.switchMode(ctx, gpu, false); err != nil {
			return err
		}
	}
	return e.Ledger.SetMode(gpu, false)
}

// Off does the step "mig-off" of a whole GPU.
type Off struct{ Mode Mode }

// Do switches the mode off; *ModeError where that is not ours to do.
func (e Off) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	p, err := decode[gpuParams](KindOff, params)
	if err != nil {
		return nil, err
	}
	if err := e.Mode.off(ctx, p.gpu()); err != nil {
		return nil, err
	}
	state, err := e.Mode.Hardware.MIG(ctx, p.gpu())
	if err == nil && state.Enabled {
		err = &ModeError{GPU: p.gpu(), Reason: "it is on, and there are instances or somebody else switched it on: the whole GPU cannot be used"}
	}
	return nil, err
}

// Undo does nothing: the GPU is as it was before anybody asked for partitions.
func (Off) Undo(context.Context, jsontext.Value, jsontext.Value) error { return nil }

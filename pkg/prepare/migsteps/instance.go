package migsteps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
)

// Instance does the step "mig-instance".
type Instance struct {
	Hardware Instances
	Users    Users
	Ledger   *ledger.Ledger
	// Patience is how long programs may take to let go of an instance; see DefaultPatience.
	Patience time.Duration
}

// Do makes the instance, or finds what an earlier try made of it, and reads it back. Errors to
// tell apart: *TakenError, *InUseError, *MismatchError, *ModeError.
func (e Instance) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	p, err := decode[instanceParams](KindInstance, params)
	if err != nil {
		return nil, err
	}
	id, found, err := e.place(ctx, p)
	if err != nil {
		return nil, err
	}
	if !found {
		if id, err = e.create(ctx, p); err != nil {
			return nil, err
		}
	}
	out, err := e.complete(ctx, p, id)
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// place looks for the instance among those that are there, and clears its place of our own
// leftovers. found tells that it is there.
func (e Instance) place(ctx context.Context, p instanceParams) (id int, found bool, err error) {
	gpu, want := p.gpu(), p.instance()
	state, err := e.Hardware.MIG(ctx, gpu)
	if err != nil {
		return 0, false, err
	}
	if !state.Enabled {
		return 0, false, &ModeError{GPU: gpu, Reason: "it is off, so no instance can be made"}
	}
	entry, err := e.Ledger.Read(gpu)
	if err != nil {
		return 0, false, err
	}
	var foreign, leftover []inventory.MIGInstance
	for _, there := range state.Instances {
		ours := slices.ContainsFunc(entry.Instances, func(i ledger.Instance) bool { return i.Is(there) })
		switch {
		case !there.Placement.Overlaps(want.Placement()):
		case !ours:
			foreign = append(foreign, there)
		case want.Is(there):
			id, found = there.ID, true
		default:
			leftover = append(leftover, there)
		}
	}
	if len(foreign) > 0 {
		return 0, false, &TakenError{GPU: gpu, Wanted: want.Placement(), By: foreign}
	}
	for _, there := range leftover {
		if err := e.remove(ctx, gpu, there); err != nil {
			return 0, false, fmt.Errorf("remove what a lost record left: %w", err)
		}
	}
	return id, found, nil
}

// create makes the GPU instance.
func (e Instance) create(ctx context.Context, p instanceParams) (int, error) {
	gpu, want := p.gpu(), p.instance()
	if err := e.Ledger.Add(gpu, want); err != nil {
		return 0, err
	}
	id, err := e.Hardware.CreateGPUInstance(ctx, gpu, p.Profile, want.Placement())
	if err == nil {
		return id, nil
	}
	err = fmt.Errorf("make GPU instance %s at %s: %w", p.ProfileName, want.Placement(), err)
	if !errors.Is(err, inventory.ErrNoRoom) {
		// It may have been made all the same; undo looks.
		return 0, err
	}
	if forgetting := e.Ledger.Remove(gpu, want); forgetting != nil {
		return 0, errors.Join(err, forgetting)
	}
	return 0, e.noRoom(ctx, p, err)
}

// noRoom finds out what NVML means: it has one word for a place that is taken, for too many
// instances and for engines that others have.
func (e Instance) noRoom(ctx context.Context, p instanceParams, cause error) error {
	state, err := e.Hardware.MIG(ctx, p.gpu())
	if err != nil {
		return errors.Join(cause, err)
	}
	var by []inventory.MIGInstance
	for _, there := range state.Instances {
		if there.Placement.Overlaps(p.instance().Placement()) {
			by = append(by, there)
		}
	}
	if len(by) > 0 {
		return &TakenError{GPU: p.gpu(), Wanted: p.instance().Placement(), By: by}
	}
	return fmt.Errorf("%w (nothing is at this place; the GPU has %d instances, and their engines or number leave no room)", cause, len(state.Instances))
}

// complete makes the compute instance where it is missing, and checks the whole.
func (e Instance) complete(ctx context.Context, p instanceParams, id int) (instanceOutput, error) {
	gpu := p.gpu()
	there, err := e.look(ctx, p, id)
	if err != nil {
		return instanceOutput{}, err
	}
	if len(there.Compute) == 0 {
		if _, err := e.Hardware.CreateComputeInstance(ctx, gpu, id); err != nil {
			return instanceOutput{}, fmt.Errorf("make the compute instance of GPU instance %d: %w", id, err)
		}
		if there, err = e.look(ctx, p, id); err != nil {
			return instanceOutput{}, err
		}
	}
	if len(there.Compute) != 1 || there.Compute[0].UUID == "" {
		return instanceOutput{}, &MismatchError{
			GPU: gpu, Wanted: "one compute instance with a UUID",
			Found: fmt.Sprintf("%d compute instances (%+v)", len(there.Compute), there.Compute),
		}
	}
	return instanceOutput{GPUInstance: id, ComputeInstance: there.Compute[0].ID, UUID: there.Compute[0].UUID}, nil
}

// look reads the instance back.
func (e Instance) look(ctx context.Context, p instanceParams, id int) (inventory.MIGInstance, error) {
	state, err := e.Hardware.MIG(ctx, p.gpu())
	if err != nil {
		return inventory.MIGInstance{}, err
	}
	wanted := fmt.Sprintf("instance %d of profile %d at %s", id, p.Profile, p.instance().Placement())
	i := slices.IndexFunc(state.Instances, func(i inventory.MIGInstance) bool { return i.ID == id })
	if i < 0 {
		return inventory.MIGInstance{}, &MismatchError{GPU: p.gpu(), Wanted: wanted, Found: "no such instance"}
	}
	there := state.Instances[i]
	if !p.instance().Is(there) {
		found := fmt.Sprintf("instance %d of profile %d at %s", id, there.ProfileID, there.Placement)
		return inventory.MIGInstance{}, &MismatchError{GPU: p.gpu(), Wanted: wanted, Found: found}
	}
	return there, nil
}

// Undo removes the instance if we made it. What is not there, or somebody else's, is left alone;
// *InUseError tells that a program still runs in it.
func (e Instance) Undo(ctx context.Context, params, _ jsontext.Value) error {
	p, err := decode[instanceParams](KindInstance, params)
	if err != nil {
		return err
	}
	gpu, want := p.gpu(), p.instance()
	entry, err := e.Ledger.Read(gpu)
	if err != nil {
		return err
	}
	if !slices.Contains(entry.Instances, want) {
		return nil
	}
	state, err := e.Hardware.MIG(ctx, gpu)
	if errors.Is(err, inventory.ErrNoDriver) {
		// Whoever installs the driver waits for the pods to end, and they for this. Should the
		// instance be there when the driver is back, the ledger still knows that it is ours.
		return nil
	}
	if err != nil && !gone(err) {
		return err
	}
	for _, there := range state.Instances {
		if want.Is(there) {
			return e.remove(ctx, gpu, there)
		}
	}
	return e.Ledger.Remove(gpu, want)
}

// remove destroys an instance of ours, sees that it is gone, and forgets it.
func (e Instance) remove(ctx context.Context, gpu inventory.GPUID, there inventory.MIGInstance) error {
	for _, c := range there.Compute {
		err := e.destroy(ctx, gpu, fmt.Sprintf("compute instance %d of GPU instance %d", c.ID, there.ID), there.ID, func() error {
			return e.Hardware.DestroyComputeInstance(ctx, gpu, there.ID, c.ID)
		})
		if err != nil {
			return err
		}
	}
	err := e.destroy(ctx, gpu, fmt.Sprintf("GPU instance %d", there.ID), there.ID, func() error {
		return e.Hardware.DestroyGPUInstance(ctx, gpu, there.ID)
	})
	if err != nil {
		return err
	}
	made := ledger.Instance{Profile: there.ProfileID, Start: there.Placement.Start, Size: there.Placement.Size}
	state, err := e.Hardware.MIG(ctx, gpu)
	switch {
	case err != nil && !gone(err):
		return err
	case slices.ContainsFunc(state.Instances, made.Is):
		return &MismatchError{GPU: gpu, Wanted: "room", Found: fmt.Sprintf("GPU instance %d still at %s after it was destroyed,", there.ID, there.Placement)}
	}
	return e.Ledger.Remove(gpu, made)
}

// destroy makes one call until it is not refused as in use.
func (e Instance) destroy(ctx context.Context, gpu inventory.GPUID, what string, instance int, call func() error) error {
	err := untilFree(ctx, e.Patience, call)
	switch {
	case err == nil, gone(err):
		return nil
	case !errors.Is(err, inventory.ErrInUse):
		return fmt.Errorf("destroy %s: %w", what, err)
	}
	// Without the names of the users the error still says enough.
	users, _ := e.Users.Processes(ctx, gpu)
	users = slices.DeleteFunc(users, func(u inventory.Process) bool { return u.Instance != instance })
	return &InUseError{GPU: gpu, What: what, Users: users, Err: err}
}

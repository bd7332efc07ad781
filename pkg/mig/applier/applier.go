// Package applier lays GPUs out as declared: it carries out the plans of package layout, one GPU
// at a time under its lock and several GPUs at once, and tells how far each is. It is for the one
// instance of the plugin that holds the node's lease. It must not know where a declaration comes
// from, nor the API server.
//
// A GPU is only disturbed while it is idle: no claim has anything of it and no program runs on
// it. Instances that are only missing are made beside those in use. What was made before a
// failure is undone. Every change is noted in the ledger before it is made, apart from what is
// made for claims, so that a process that is killed anywhere is continued by the next, and no
// claim's end removes what was declared.
package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
)

// State is how far a GPU is.
type State string

// The states.
const (
	// Applied: the GPU is as declared.
	Applied State = "applied"
	// Pending: something uses the GPU, so that it cannot be laid out now.
	Pending State = "pending"
	// Failed: it cannot be laid out until something else changes, or an attempt failed.
	Failed State = "failed"
)

// Status is how far one GPU is. Reason is empty where its layout is applied.
type Status struct {
	GPU    pci.Address
	State  State
	Reason string
}

// Hardware changes GPUs; nvml.Library is one.
type Hardware interface {
	migsteps.Instances
	migsteps.Modes
	migsteps.Users
}

// Locks keeps others from a GPU; lock.Locker is one.
type Locks interface {
	Lock(context.Context, lock.Key) (unlock func(), err error)
}

// Claims knows who has something of a GPU; prepare.Engine is one.
type Claims interface {
	Holders(gpu pci.Address) ([]claims.Ref, error)
}

const (
	// lockWait bounds the wait for a GPU on which a call works.
	lockWait = 5 * time.Second
	// patience is how long programs may take to let go of an instance: the next pass tries again.
	patience = time.Second
	// undoTime bounds the end of an attempt whose time is up.
	undoTime = 15 * time.Second
	// firstPause and lastPause are the times between attempts that fail.
	firstPause = 15 * time.Second
	lastPause  = 5 * time.Minute
)

// Config is what an Applier works with.
type Config struct {
	Hardware Hardware
	Locks    Locks
	Claims   Claims
	Ledger   *ledger.Ledger
	// Changed is told after a GPU was changed. It must not block.
	Changed func()
}

// Applier lays GPUs out. It is used by one caller at a time.
type Applier struct {
	Config
	forLayouts, forClaims migsteps.Instance
	mode                  migsteps.Mode

	mu       sync.Mutex
	failures map[pci.Address]failure
}

// failure is an attempt that failed. The next is made when its time has come, or for another
// layout.
type failure struct {
	layout string
	err    error
	next   time.Time
	pause  time.Duration
}

// New makes an Applier.
func New(config Config) *Applier {
	a := &Applier{Config: config, failures: map[pci.Address]failure{}}
	instance := migsteps.Instance{Hardware: config.Hardware, Users: config.Hardware, Ledger: config.Ledger, Patience: patience}
	a.forClaims, a.forLayouts = instance, instance
	a.forLayouts.Ledger = config.Ledger.ForLayouts()
	a.mode = migsteps.Mode{Hardware: config.Hardware, Users: config.Hardware, Ledger: config.Ledger.ForLayouts(), Patience: patience, Changed: config.Changed}
	return a
}

// Apply brings each GPU of a snapshot, whose instances are marked, nearer to its layout, and
// removes what is left of an earlier layout from those that have none. It returns the state of
// each GPU with a layout, and of those from which one could not be removed yet, in the order of
// the snapshot.
func (a *Applier) Apply(ctx context.Context, s inventory.Snapshot, layouts layout.Layouts) []Status {
	statuses := make([]*Status, len(s.GPUs))
	var group errgroup.Group
	for i, g := range s.GPUs {
		l, declared := layouts[g.PCI]
		plan := planner(l.Plan)
		if !declared {
			plan = func(g inventory.GPU) (layout.Plan, error) { return layout.Undo(g), nil }
		}
		group.Go(func() error {
			status := a.gpu(ctx, g, plan, fmt.Sprintf("%t %s", declared, l))
			if declared || status.State != Applied {
				statuses[i] = &status
			}
			return nil
		})
	}
	_ = group.Wait() // nobody returns an error
	var out []Status
	for _, status := range statuses {
		if status != nil {
			out = append(out, *status)
		}
	}
	return out
}

// planner says what has to be done to a GPU.
type planner func(inventory.GPU) (layout.Plan, error)

// gpu brings one GPU nearer to what is planned. name tells layouts apart.
func (a *Applier) gpu(ctx context.Context, g inventory.GPU, plan planner, name string) Status {
	status := Status{GPU: g.PCI, State: Applied}
	p, err := plan(g)
	switch {
	case err != nil:
		return Status{GPU: g.PCI, State: Failed, Reason: err.Error()}
	case p.Done():
		a.forget(g.PCI)
		if err := a.tidy(ctx, g); err != nil {
			klog.FromContext(ctx).Error(err, "The ledger still has what is not there any more", "gpu", g.PCI)
		}
		return status
	}
	if err := a.notYet(g.PCI, name); err != nil {
		return Status{GPU: g.PCI, State: Failed, Reason: err.Error()}
	}
	err = a.locked(ctx, g, plan)
	busy := new(busyError)
	switch {
	case err == nil:
		a.forget(g.PCI)
	case errors.As(err, &busy), ctx.Err() != nil:
		status.State, status.Reason = Pending, err.Error()
	default:
		status.State, status.Reason = Failed, err.Error()
		a.failed(g.PCI, name, err)
		klog.FromContext(ctx).Error(err, "A GPU could not be laid out", "gpu", g.PCI)
	}
	return status
}

// tidy forgets what was noted and never done, or undone by others. Nothing is read but the ledger
// where that agrees with the GPU as it was seen.
func (a *Applier) tidy(ctx context.Context, g inventory.GPU) error {
	book, id := a.Ledger.ForLayouts(), inventory.GPUID{PCI: g.PCI, UUID: g.UUID}
	entry, err := book.Read(id)
	if err != nil || !stale(entry, g.MIG) {
		return err
	}
	unlock, err := a.lock(ctx, g.PCI)
	if err != nil {
		return err
	}
	defer unlock()
	if entry, err = book.Read(id); err != nil {
		return err
	}
	state, err := a.Hardware.MIG(ctx, id)
	if err != nil {
		return err
	}
	for _, i := range slices.Clone(entry.Instances) {
		if !slices.ContainsFunc(state.Instances, i.Is) {
			err = errors.Join(err, book.Remove(id, i))
		}
	}
	if entry.Mode && !state.Enabled {
		err = errors.Join(err, book.SetMode(id, false))
	}
	return err
}

// stale tells whether the ledger has what the GPU does not have.
func stale(entry ledger.Entry, state inventory.MIG) bool {
	return entry.Mode && !state.Enabled || slices.ContainsFunc(entry.Instances, func(i ledger.Instance) bool {
		return !slices.ContainsFunc(state.Instances, i.Is)
	})
}

// busyError tells that something uses the GPU.
type busyError struct {
	gpu pci.Address
	by  string
}

func (e *busyError) Error() string { return fmt.Sprintf("GPU %s is in use by %s", e.gpu, e.by) }

// locked plans anew under the GPU's lock, and carries it out where nobody is disturbed.
func (a *Applier) locked(ctx context.Context, g inventory.GPU, plan planner) error {
	unlock, err := a.lock(ctx, g.PCI)
	if timeout := new(lock.TimeoutError); errors.As(err, &timeout) {
		return &busyError{gpu: g.PCI, by: "a call that prepares or unprepares a claim"}
	}
	if err != nil {
		return err
	}
	defer unlock()
	id := inventory.GPUID{PCI: g.PCI, UUID: g.UUID}
	state, err := a.Hardware.MIG(ctx, id)
	if err != nil {
		return fmt.Errorf("look at GPU %s: %w", g.PCI, err)
	}
	g.MIG = state
	if err := a.Ledger.Mark(&g); err != nil {
		return err
	}
	p, err := plan(g)
	if err != nil || p.Done() {
		return err
	}
	if p.Disturbs() {
		if err := a.idle(ctx, id); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Laying a GPU out", "gpu", g.PCI, "remove", len(p.Remove), "make", len(p.Make), "switchMode", p.Switch)
	defer a.Changed()
	return a.carryOut(ctx, id, p)
}

func (a *Applier) lock(ctx context.Context, gpu pci.Address) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return a.Locks.Lock(ctx, prepare.GPUKey(gpu))
}

// idle gives a *busyError while something uses the GPU.
func (a *Applier) idle(ctx context.Context, gpu inventory.GPUID) error {
	holders, err := a.Claims.Holders(gpu.PCI)
	if err != nil {
		return err
	}
	var by []string
	for _, h := range holders {
		by = append(by, fmt.Sprintf("claim %s/%s", h.Namespace, h.Name))
	}
	users, err := a.Hardware.Processes(ctx, gpu)
	if err != nil {
		return fmt.Errorf("programs on GPU %s: %w", gpu.PCI, err)
	}
	for _, u := range users {
		by = append(by, fmt.Sprintf("process %d", u.PID))
	}
	if len(by) > 0 {
		return &busyError{gpu: gpu.PCI, by: strings.Join(by, ", ")}
	}
	return nil
}

// carryOut makes the plan's changes. What it made is undone when it fails.
func (a *Applier) carryOut(ctx context.Context, gpu inventory.GPUID, p layout.Plan) error {
	for _, i := range p.Remove {
		steps := a.forLayouts
		if i.Ours {
			steps = a.forClaims
		}
		step, err := migsteps.InstanceStep(gpu, ledger.Instance{Profile: i.ProfileID, Start: i.Placement.Start, Size: i.Placement.Size}, "")
		if err == nil {
			err = busyIfInUse(gpu, steps.Undo(ctx, step.Params, nil))
		}
		if err != nil {
			return err
		}
	}
	if p.Switch && !p.Mode {
		return a.switchOff(ctx, gpu)
	}
	var done []func(context.Context) error
	err := a.build(ctx, gpu, p, &done)
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	for i := len(done) - 1; i >= 0; i-- {
		err = errors.Join(err, done[i](undo))
	}
	return err
}

// build switches the mode on and makes instances. done gets what undoes it, in order.
func (a *Applier) build(ctx context.Context, gpu inventory.GPUID, p layout.Plan, done *[]func(context.Context) error) error {
	// A mode that was switched on for claims must not go with the last of them.
	if err := a.Ledger.KeepMode(gpu); err != nil {
		return err
	}
	if p.Switch {
		step, err := migsteps.ModeStep(gpu)
		if err != nil {
			return err
		}
		*done = append(*done, func(ctx context.Context) error { return a.mode.Undo(ctx, step.Params, nil) })
		if _, err := a.mode.Do(ctx, step.Params); err != nil {
			return busyIfInUse(gpu, err)
		}
	}
	for _, part := range p.Make {
		step, err := instanceStep(gpu, part)
		if err != nil {
			return err
		}
		*done = append(*done, func(ctx context.Context) error { return a.forLayouts.Undo(ctx, step.Params, nil) })
		if _, err := a.forLayouts.Do(ctx, step.Params); err != nil {
			return err
		}
	}
	return nil
}

func instanceStep(gpu inventory.GPUID, part mig.Partition) (journal.Step, error) {
	at := ledger.Instance{Profile: part.Profile.ID, Start: part.Placement.Start, Size: part.Placement.Size}
	return migsteps.InstanceStep(gpu, at, part.Profile.Name)
}

// switchOff switches the mode off, whoever switched it on: that is what is declared. To those who
// come after a crash here the mode is ours to switch off.
func (a *Applier) switchOff(ctx context.Context, gpu inventory.GPUID) error {
	if err := a.Ledger.KeepMode(gpu); err != nil {
		return err
	}
	if err := a.Ledger.ForLayouts().SetMode(gpu, true); err != nil {
		return err
	}
	step, err := migsteps.OffStep(gpu)
	if err != nil {
		return err
	}
	_, err = migsteps.Off{Mode: a.mode}.Do(ctx, step.Params)
	return busyIfInUse(gpu, err)
}

// busyIfInUse makes a *busyError of what goes when programs end.
func busyIfInUse(gpu inventory.GPUID, err error) error {
	if inUse := new(migsteps.InUseError); errors.As(err, &inUse) {
		return &busyError{gpu: gpu.PCI, by: "a program: " + inUse.Error()}
	}
	return err
}

// notYet gives the error of an attempt that is not to be repeated now.
func (a *Applier) notYet(gpu pci.Address, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.failures[gpu]; f.layout == name && time.Now().Before(f.next) {
		return f.err
	}
	return nil
}

func (a *Applier) failed(gpu pci.Address, name string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.failures[gpu]
	f.pause = min(max(2*f.pause, firstPause), lastPause)
	f.layout, f.err, f.next = name, err, time.Now().Add(f.pause)
	a.failures[gpu] = f
}

func (a *Applier) forget(gpu pci.Address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failures, gpu)
}

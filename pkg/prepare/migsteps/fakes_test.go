package migsteps_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/topology"
)

var errCrash = errors.New("the process died")

// board is a GPU that keeps NVML's rules as far as steps meet them.
type board struct {
	gpu        inventory.GPU
	needsReset bool
	processes  []inventory.Process
	// fail gives the outcome of the next calls by name: one error after the other.
	fail map[string][]error
	// busy is how often a call is refused as in use.
	busy map[string]int
	// crashAt ends everything at the n-th call that changes something, before or after the deed.
	changes, crashAt int
	crashAfter       bool
	calls            []string
}

func newBoard(t testing.TB, preset string) *board {
	t.Helper()
	g := migtest.Snapshot(t, preset).GPUs[0]
	return &board{gpu: g, needsReset: g.ComputeMajor < 9, fail: map[string][]error{}, busy: map[string]int{}}
}

func (b *board) id() inventory.GPUID { return inventory.GPUID{PCI: b.gpu.PCI, UUID: b.gpu.UUID} }

// call meets the injected faults of one call.
func (b *board) call(name string, gpu inventory.GPUID) error {
	b.calls = append(b.calls, name)
	if gpu != b.id() {
		return inventory.ErrNoSuchGPU
	}
	if b.busy[name] > 0 {
		b.busy[name]--
		return fmt.Errorf("%s: %w", name, inventory.ErrInUse)
	}
	if list := b.fail[name]; len(list) > 0 {
		b.fail[name] = list[1:]
		return list[0]
	}
	return nil
}

// change makes a change, or dies before or after it.
func (b *board) change(name string, gpu inventory.GPUID, deed func() error) error {
	if err := b.call(name, gpu); err != nil {
		return err
	}
	b.changes++
	if b.changes == b.crashAt && !b.crashAfter {
		return errCrash
	}
	if err := deed(); err != nil {
		return err
	}
	if b.changes == b.crashAt {
		return errCrash
	}
	return nil
}

func (b *board) MIG(_ context.Context, gpu inventory.GPUID) (inventory.MIG, error) {
	if err := b.call("MIG", gpu); err != nil {
		return inventory.MIG{}, err
	}
	state := b.gpu.MIG
	state.Instances = slices.Clone(state.Instances)
	for i := range state.Instances {
		state.Instances[i].Compute = slices.Clone(state.Instances[i].Compute)
	}
	return state, nil
}

func (b *board) CreateGPUInstance(_ context.Context, gpu inventory.GPUID, profile int, at inventory.MIGPlacement) (id int, err error) {
	err = b.change("CreateGPUInstance", gpu, func() error {
		if !b.gpu.MIG.Enabled {
			return inventory.ErrNotSupported
		}
		if slices.ContainsFunc(b.gpu.MIG.Instances, func(i inventory.MIGInstance) bool { return i.Placement.Overlaps(at) }) {
			return inventory.ErrNoRoom
		}
		id = 10 + at.Start
		b.gpu.MIG.Instances = append(b.gpu.MIG.Instances, inventory.MIGInstance{ID: id, ProfileID: profile, Placement: at})
		return nil
	})
	return id, err
}

func (b *board) find(id int) (*inventory.MIGInstance, error) {
	for i := range b.gpu.MIG.Instances {
		if b.gpu.MIG.Instances[i].ID == id {
			return &b.gpu.MIG.Instances[i], nil
		}
	}
	return nil, inventory.ErrNoSuchGPU
}

func (b *board) CreateComputeInstance(_ context.Context, gpu inventory.GPUID, instance int) (int, error) {
	return 0, b.change("CreateComputeInstance", gpu, func() error {
		i, err := b.find(instance)
		if err != nil {
			return err
		}
		i.Compute = append(i.Compute, inventory.MIGCompute{ID: 0, UUID: fmt.Sprintf("MIG-%d", instance)})
		return nil
	})
}

func (b *board) DestroyComputeInstance(_ context.Context, gpu inventory.GPUID, instance, compute int) error {
	return b.change("DestroyComputeInstance", gpu, func() error {
		i, err := b.find(instance)
		if err != nil {
			return err
		}
		i.Compute = slices.DeleteFunc(i.Compute, func(c inventory.MIGCompute) bool { return c.ID == compute })
		return nil
	})
}

func (b *board) DestroyGPUInstance(_ context.Context, gpu inventory.GPUID, instance int) error {
	return b.change("DestroyGPUInstance", gpu, func() error {
		i, err := b.find(instance)
		if err != nil {
			return err
		}
		if len(i.Compute) > 0 {
			return inventory.ErrInUse
		}
		b.gpu.MIG.Instances = slices.DeleteFunc(b.gpu.MIG.Instances, func(i inventory.MIGInstance) bool { return i.ID == instance })
		return nil
	})
}

func (b *board) SetMIGMode(_ context.Context, gpu inventory.GPUID, on bool) error {
	return b.change("SetMIGMode", gpu, func() error {
		b.gpu.MIG.PendingEnabled = on
		switch {
		case b.gpu.MIG.Enabled == on:
			return nil
		case b.needsReset:
			return inventory.ErrNeedsReset
		case len(b.gpu.MIG.Instances) > 0:
			return inventory.ErrInUse
		}
		b.gpu.MIG.Enabled = on
		b.gpu.Minor += 10
		return nil
	})
}

func (b *board) Processes(_ context.Context, gpu inventory.GPUID) ([]inventory.Process, error) {
	return b.processes, b.call("Processes", gpu)
}

// rig is a board with the executors and a ledger.
type rig struct {
	*board
	ledger   *ledger.Ledger
	switched int
}

func newRig(t testing.TB, preset string) *rig {
	t.Helper()
	return &rig{board: newBoard(t, preset), ledger: ledger.New(t.TempDir(), "boot")}
}

const patience = 2 * time.Second

func (r *rig) mode() migsteps.Mode {
	return migsteps.Mode{Hardware: r.board, Users: r.board, Ledger: r.ledger, Patience: patience, Changed: func() { r.switched++ }}
}

func (r *rig) instance() migsteps.Instance {
	return migsteps.Instance{Hardware: r.board, Users: r.board, Ledger: r.ledger, Patience: patience}
}

// snapshot is what a look at the hardware finds, marked.
func (r *rig) snapshot(t testing.TB) inventory.Snapshot {
	t.Helper()
	s, err := ledger.Marker{Ledger: r.ledger, Scanner: r}.Scan(t.Context())
	must(t, err)
	return s
}

func (r *rig) Scan(ctx context.Context) (inventory.Snapshot, error) {
	g := r.gpu
	state, err := r.board.MIG(ctx, r.id())
	g.MIG = state
	return inventory.Snapshot{Driver: inventory.Driver{Present: true}, GPUs: []inventory.GPU{g}}, err
}

// device finds one by the end of its name; "" is the whole GPU.
func (r *rig) device(t testing.TB, name string) claims.Device {
	t.Helper()
	s := r.snapshot(t)
	a, _ := topology.Resolve(s, topology.Memory{})
	for _, d := range device.FromPartitionedSnapshot(s, a, nil).Devices {
		if d.Name() == device.GPUName(r.gpu.PCI)+"-mig-"+name || name == "" && d.Kind() == device.KindGPU {
			return claims.Device{Device: d}
		}
	}
	t.Fatalf("there is no device %q", name)
	return claims.Device{}
}

// numbers are the device numbers of the board.
type numbers struct{ *board }

func (n numbers) GPUMinor(_ context.Context, at pci.Address) (int, error) {
	if at != n.gpu.PCI {
		return 0, fs.ErrNotExist
	}
	return n.gpu.Minor, nil
}

func (n numbers) InstanceCapabilities(_ context.Context, minor, gi, ci int) (int, int, error) {
	if there, err := n.find(gi); err != nil || len(there.Compute) == 0 || minor != n.gpu.Minor {
		return 0, 0, fmt.Errorf("gpu%d/gi%d: %w", minor, gi, fs.ErrNotExist)
	}
	return 1000 + gi, 2000 + gi + ci, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// steps are those of a device.
func (r *rig) steps(t testing.TB, name string) []journal.Step {
	t.Helper()
	list, err := migsteps.Handler{}.Steps(r.device(t, name))
	must(t, err)
	return list
}

type executor interface {
	Do(context.Context, jsontext.Value) (jsontext.Value, error)
	Undo(ctx context.Context, params, output jsontext.Value) error
}

func (r *rig) executor(kind string) executor {
	switch kind {
	case migsteps.KindMode:
		return r.mode()
	case migsteps.KindInstance:
		return r.instance()
	}
	return migsteps.Off{Mode: r.mode()}
}

// do does all steps and notes their outputs.
func (r *rig) do(ctx context.Context, steps []journal.Step) error {
	for i := range steps {
		out, err := r.executor(steps[i].Kind).Do(ctx, steps[i].Params)
		if err != nil {
			return err
		}
		steps[i].Output = out
	}
	return nil
}

// undo undoes all steps, without their outputs.
func (r *rig) undo(ctx context.Context, steps []journal.Step) error {
	for _, s := range slices.Backward(steps) {
		if err := r.executor(s.Kind).Undo(ctx, s.Params, nil); err != nil {
			return err
		}
	}
	return nil
}

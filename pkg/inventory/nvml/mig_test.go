package nvml_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/test/gpusim"
)

// cut makes a node whose scans ask for partitions.
func cut(t testing.TB, preset string, opts ...gpusim.Option) machine {
	t.Helper()
	return machineOptions(t, preset, nvml.Options{CallTimeout: time.Minute, Partitions: true}, opts...)
}

func (m machine) id(t testing.TB, i int) inventory.GPUID {
	t.Helper()
	g := m.scan(t).GPUs[i]
	return inventory.GPUID{PCI: g.PCI, UUID: g.UUID}
}

// Profiles and placements of every board are what the board's data says, with the mode off.
func TestProfiles(t *testing.T) {
	for _, preset := range migtest.Presets() {
		t.Run(preset, func(t *testing.T) {
			want := migtest.Snapshot(t, preset)
			got := cut(t, preset).scan(t)
			for i, g := range got.GPUs {
				if diff := cmp.Diff(want.GPUs[i].MIG, g.MIG); diff != "" {
					t.Errorf("GPU %d (-want +got):\n%s", i, diff)
				}
			}
			if len(got.Problems) > 0 {
				t.Errorf("problems %v", got.Problems)
			}
		})
	}
}

// Nothing is asked of partitions where nobody wants to know.
func TestProfilesAreNotAskedFor(t *testing.T) {
	m := newMachine(t, "hgx-h100-8")
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetGpuInstanceProfileInfo", GPU: gpusim.AnyGPU, Code: 999, Count: gpusim.Forever}))
	if s := m.scan(t); s.GPUs[0].MIG.Profiles != nil || len(s.Problems) > 0 {
		t.Errorf("profiles %v, problems %v", s.GPUs[0].MIG.Profiles, s.Problems)
	}
}

// Profiles are read once; what fails is read again.
func TestProfilesAreKept(t *testing.T) {
	m := cut(t, "a30-4")
	fault := gpusim.CallFault{Function: "nvmlDeviceGetGpuInstancePossiblePlacements", GPU: gpusim.AnyGPU, Code: 999, Count: gpusim.Forever}
	do(t, m.FailCall(fault))
	if s := m.scan(t); s.GPUs[0].MIG.Profiles != nil || len(s.Problems) != 4 || s.Problems[0].Fact != "migProfiles" {
		t.Errorf("profiles %v, problems %v", s.GPUs[0].MIG.Profiles, s.Problems)
	}
	do(t, m.ClearFaults())
	before := m.scan(t)
	do(t, m.FailCall(fault))
	after := m.scan(t)
	if len(after.Problems) > 0 || len(after.GPUs[0].MIG.Profiles) != 5 {
		t.Errorf("problems %v", after.Problems)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("second scan:\n%s", diff)
	}
}

// Instances that another tool makes and removes are seen as they are.
func TestInstancesOfOthers(t *testing.T) {
	m := cut(t, "hgx-h100-8")
	do(t, m.SetMIGMode(2, true))
	made, err := m.CreateMIG(2, "3g.40gb", 4)
	do(t, err)
	want := []inventory.MIGInstance{{
		ID: made.ID, ProfileID: 9, Placement: inventory.MIGPlacement{Start: 4, Size: 4},
		Compute: []inventory.MIGCompute{{ID: made.Compute[0].ID, UUID: made.Compute[0].UUID, Slices: 3}},
	}}
	s := m.scan(t)
	if diff := cmp.Diff(want, s.GPUs[2].MIG.Instances); diff != "" || !s.GPUs[2].MIG.Enabled || s.GPUs[1].MIG.Instances != nil {
		t.Errorf("mode %+v, instances (-want +got):\n%s", s.GPUs[2].MIG, diff)
	}
	do(t, m.DestroyMIG(2, made.ID))
	if s := m.scan(t); s.GPUs[2].MIG.Instances != nil || !s.GPUs[2].MIG.Enabled {
		t.Errorf("after its end: %+v", s.GPUs[2].MIG.Instances)
	}
}

// The whole life of a partition, in calls.
func TestPartitionLife(t *testing.T) {
	ctx, m := t.Context(), cut(t, "hgx-h100-8")
	gpu, l, at := m.id(t, 1), m.library, inventory.MIGPlacement{Start: 2, Size: 2}
	const profile2g = 14
	if _, err := l.CreateGPUInstance(ctx, gpu, profile2g, at); !errors.Is(err, inventory.ErrNotSupported) {
		t.Errorf("made while the mode is off: %v", err)
	}
	do(t, l.SetMIGMode(ctx, gpu, true))
	gi, err := l.CreateGPUInstance(ctx, gpu, profile2g, at)
	do(t, err)
	state, err := l.MIG(ctx, gpu)
	do(t, err)
	bare := []inventory.MIGInstance{{ID: gi, ProfileID: profile2g, Placement: at}}
	if diff := cmp.Diff(bare, state.Instances); diff != "" || !state.Enabled || len(state.Profiles) != 7 {
		t.Errorf("mode %t, instances (-want +got):\n%s", state.Enabled, diff)
	}
	if _, err := l.CreateGPUInstance(ctx, gpu, profile2g, at); !errors.Is(err, inventory.ErrNoRoom) {
		t.Errorf("made at a place that is taken: %v", err)
	}
	ci, err := l.CreateComputeInstance(ctx, gpu, gi)
	do(t, err)
	state, err = l.MIG(ctx, gpu)
	do(t, err)
	if c := state.Instances[0].Compute; len(c) != 1 || c[0].ID != ci || c[0].Slices != 2 || c[0].UUID == "" {
		t.Errorf("compute instances %+v", c)
	}
	if err := l.DestroyGPUInstance(ctx, gpu, gi); !errors.Is(err, inventory.ErrInUse) {
		t.Errorf("a GPU instance with a compute instance is removed: %v", err)
	}
	do(t, m.SetMIGClients(1, gi, ci, 1))
	if err := l.DestroyComputeInstance(ctx, gpu, gi, ci); !errors.Is(err, inventory.ErrInUse) {
		t.Errorf("a compute instance in use is removed: %v", err)
	}
	do(t, m.SetMIGClients(1, gi, ci, 0))
	do(t, l.DestroyComputeInstance(ctx, gpu, gi, ci))
	do(t, l.DestroyGPUInstance(ctx, gpu, gi))
	for what, err := range map[string]error{
		"compute instance": l.DestroyComputeInstance(ctx, gpu, gi, ci), "GPU instance": l.DestroyGPUInstance(ctx, gpu, gi),
	} {
		if !errors.Is(err, inventory.ErrNoSuchGPU) {
			t.Errorf("removing a %s again: %v", what, err)
		}
	}
	do(t, l.SetMIGMode(ctx, gpu, false))
	if state, err := l.MIG(ctx, gpu); err != nil || state.Enabled || state.PendingEnabled || state.Instances != nil {
		t.Errorf("in the end: %+v, %v", state, err)
	}
}

func TestModeThatNeedsAReset(t *testing.T) {
	m := cut(t, "dgx-a100-80")
	gpu := m.id(t, 0)
	if err := m.library.SetMIGMode(t.Context(), gpu, true); !errors.Is(err, inventory.ErrNeedsReset) {
		t.Fatalf("an A100 switches at once: %v", err)
	}
	if state, err := m.library.MIG(t.Context(), gpu); err != nil || state.Enabled || !state.PendingEnabled {
		t.Errorf("state %+v, %v", state, err)
	}
	do(t, m.library.SetMIGMode(t.Context(), gpu, false))
	if state, err := m.library.MIG(t.Context(), gpu); err != nil || state.PendingEnabled {
		t.Errorf("taken back: %+v, %v", state, err)
	}
}

func TestOperationsOnTheWrongGPU(t *testing.T) {
	m := cut(t, "hgx-h100-8")
	gpu := m.id(t, 0)
	other := inventory.GPUID{PCI: gpu.PCI, UUID: "GPU-00000000-0000-0000-0000-000000000000"}
	if err := m.library.SetMIGMode(t.Context(), other, true); !errors.Is(err, inventory.ErrNoSuchGPU) {
		t.Errorf("another board at the address: %v", err)
	}
	other.PCI.Bus = 0xfe
	if _, err := m.library.MIG(t.Context(), other); !errors.Is(err, inventory.ErrNoSuchGPU) {
		t.Errorf("no board at the address: %v", err)
	}
	do(t, m.LoseGPU(0))
	if _, err := m.library.MIG(t.Context(), gpu); !errors.Is(err, inventory.ErrLost) {
		t.Errorf("a lost GPU: %v", err)
	}
}

// Work on one GPU does not wait for that on another, nor a look at the node; the session stays
// open as long as somebody works.
func TestOperationsRunBesideEachOther(t *testing.T) {
	m := cut(t, "hgx-h100-8")
	first, second := m.id(t, 0), m.id(t, 1)
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceSetMigMode", GPU: 0, Hang: true}))
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return m.library.SetMIGMode(ctx, first, true) })
	eventually(t, func() bool { return m.library.Close(t.Context()) != nil })
	do(t, m.library.SetMIGMode(t.Context(), second, true))
	cancel()
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the one that was given up: %v", err)
	}
	do(t, m.ClearFaults())
}

func TestProcesses(t *testing.T) {
	m := cut(t, "hgx-h100-8")
	gpu := m.id(t, 3)
	none, err := m.library.Processes(t.Context(), gpu)
	do(t, err)
	do(t, m.SetClients(3, 2))
	some, err := m.library.Processes(t.Context(), gpu)
	do(t, err)
	do(t, m.SetClients(3, 0))
	do(t, m.SetMIGMode(3, true))
	made, err := m.CreateMIG(3, "1g.10gb", 0)
	do(t, err)
	do(t, m.SetMIGClients(3, made.ID, made.Compute[0].ID, 1))
	inside, err := m.library.Processes(t.Context(), gpu)
	do(t, err)
	if len(none) != 0 || len(some) != 2 || some[0].Instance != -1 || len(inside) != 1 || inside[0].Instance != made.ID {
		t.Errorf("none %v, two on the GPU %v, one on the instance %v", none, some, inside)
	}
	if !slices.IsSortedFunc(some, func(a, b inventory.Process) int { return a.PID - b.PID }) {
		t.Errorf("%v is not in the order of the numbers", some)
	}
}

// A scan that asks for partitions costs little more than one that does not.
func BenchmarkScanWithPartitions(b *testing.B) {
	for name, m := range map[string]machine{"without": newMachine(b, "hgx-h100-8"), "with": cut(b, "hgx-h100-8")} {
		b.Run(name, func(b *testing.B) {
			m.scan(b)
			for b.Loop() {
				m.scan(b)
			}
		})
	}
}

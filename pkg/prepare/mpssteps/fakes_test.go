package mpssteps_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/prepare/mpssteps"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// address is that of the i-th GPU.
func address(i int) pci.Address {
	a, err := pci.Parse(fmt.Sprintf("0000:%02x:00.0", i+1))
	if err != nil {
		panic(err)
	}
	return a
}

func id(i int) inventory.GPUID {
	return inventory.GPUID{PCI: address(i), UUID: fmt.Sprintf("GPU-%d", i)}
}

// gpu is a whole GPU as plans have it.
type gpu struct {
	device.Device
	i int
}

func (g gpu) Name() string    { return device.GPUName(address(g.i)) }
func (gpu) Kind() device.Kind { return device.KindGPU }
func (g gpu) Identity() device.Identity {
	return device.Identity{PCI: address(g.i), GPUUUID: id(g.i).UUID}
}

// part is a partition of the i-th GPU.
type part struct {
	gpu
	at inventory.MIGPlacement
}

func (p part) Name() string    { return fmt.Sprintf("%s-mig-1g-10gb-%d", p.gpu.Name(), p.at.Start) }
func (part) Kind() device.Kind { return device.KindMIG }
func (p part) Parent() inventory.GPU {
	return inventory.GPU{PCI: address(p.i), UUID: id(p.i).UUID}
}
func (p part) Partition() mig.Partition { return mig.Partition{Placement: p.at} }

// hardware has compute modes.
type hardware struct {
	modes map[string]inventory.ComputeMode
	// parts are the UUIDs of partitions by GPU and place.
	parts map[string]string
	// refuse is the answer to setting a mode; lost are GPUs that are.
	refuse error
	lost   map[int]bool
	// gone tells that there is no GPU driver.
	gone bool
	sets int
}

func newHardware() *hardware {
	return &hardware{modes: map[string]inventory.ComputeMode{}, parts: map[string]string{}, lost: map[int]bool{}}
}

func placeKey(g inventory.GPUID, at inventory.MIGPlacement) string { return g.UUID + " " + at.String() }

func (h *hardware) check(g inventory.GPUID) error {
	if h.gone {
		return inventory.ErrNoDriver
	}
	for i, lost := range h.lost {
		if lost && id(i) == g {
			return fmt.Errorf("call: %w", inventory.ErrLost)
		}
	}
	return nil
}

func (h *hardware) MIG(_ context.Context, g inventory.GPUID) (inventory.MIG, error) {
	out := inventory.MIG{Enabled: true}
	for i := range 8 {
		at := inventory.MIGPlacement{Start: i, Size: 1}
		if uuid, ok := h.parts[placeKey(g, at)]; ok {
			out.Instances = append(out.Instances, inventory.MIGInstance{ID: i, Placement: at, Compute: []inventory.MIGCompute{{UUID: uuid}}})
		}
	}
	return out, h.check(g)
}

func (h *hardware) name(g inventory.GPUID, partition string) (string, error) {
	if err := h.check(g); err != nil {
		return "", err
	}
	if partition == "" {
		return g.UUID, nil
	}
	for _, uuid := range h.parts {
		if uuid == partition {
			return partition, nil
		}
	}
	return "", inventory.ErrNoSuchGPU
}

func (h *hardware) ComputeMode(_ context.Context, g inventory.GPUID, partition string) (inventory.ComputeMode, error) {
	name, err := h.name(g, partition)
	return h.modes[name], err
}

func (h *hardware) SetComputeMode(_ context.Context, g inventory.GPUID, partition string, mode inventory.ComputeMode) error {
	name, err := h.name(g, partition)
	if err != nil {
		return err
	}
	if h.refuse != nil {
		return h.refuse
	}
	h.sets++
	h.modes[name] = mode
	return nil
}

var errAway = errors.New("nobody there")

// daemons are control daemons by name.
type daemons struct {
	running map[string]mps.Spec
	away    bool
	ensures int
}

func (d *daemons) Ensure(_ context.Context, name string, spec mps.Spec) error {
	if d.away {
		return errAway
	}
	d.ensures++
	d.running[name] = spec
	return errors.Join(mps.CheckName(name), spec.Validate())
}

func (d *daemons) Stop(_ context.Context, name string) error {
	if d.away {
		return errAway
	}
	delete(d.running, name)
	return nil
}

// rig is a node.
type rig struct {
	*hardware
	*daemons
	layout  mps.Layout
	records map[types.UID]bool
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &rig{hardware: newHardware(), daemons: &daemons{running: map[string]mps.Spec{}}, layout: mps.Layout(dir), records: map[types.UID]bool{}}
}

// live has control daemons be possible, until the test ends or the returned function is called.
func (r *rig) live(t testing.TB) (end func()) {
	t.Helper()
	f, err := os.Create(r.layout.LifeLock())
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { _ = f.Close() })
	return func() { _ = f.Close() }
}

func (r *rig) step() mpssteps.Step {
	return mpssteps.Step{Hardware: r.hardware, Daemons: r.daemons, Layout: r.layout, Known: func(uid types.UID) bool { return r.records[uid] }}
}

// planned is a device of a claim of that name.
func planned(claim string, d device.Device, want claims.MPS) claims.Device {
	return claims.Device{
		Claim: claims.Ref{Namespace: "team", Name: claim, UID: types.UID("uid-" + claim)}, Device: d,
		Settings: claims.Settings{MPS: &want},
	}
}

func (r *rig) steps(t testing.TB, d claims.Device) []journal.Step {
	t.Helper()
	list, err := mpssteps.Handler{Layout: r.layout}.Steps(d)
	must(t, err)
	if len(list) != 1 || list[0].Kind != mpssteps.Kind {
		t.Fatalf("steps %+v", list)
	}
	return list
}

func (r *rig) do(t testing.TB, d claims.Device) error {
	t.Helper()
	r.records[d.Claim.UID] = true
	_, err := r.step().Do(t.Context(), r.steps(t, d)[0].Params)
	return err
}

func (r *rig) undo(t testing.TB, d claims.Device) error {
	t.Helper()
	err := r.step().Undo(t.Context(), r.steps(t, d)[0].Params, nil)
	if err == nil {
		delete(r.records, d.Claim.UID)
	}
	return err
}

func threads(n int) claims.MPS { return claims.MPS{ActiveThreadPercentage: &n} }

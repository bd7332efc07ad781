package applier_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/applier"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"

	"github.com/gpu-dra/driver/pkg/device"
)

var errCrash = errors.New("the process died")

// board is a GPU that keeps NVML's rules as far as layouts meet them.
type board struct {
	gpu       inventory.GPU
	processes []inventory.Process
	// busy are instances in use, by start.
	busy map[int]bool
	// fail is the error of calls by name.
	fail map[string]error
	// From the crashAt-th change on nothing works, before or after that change.
	changes, crashAt int
	crashAfter       bool
}

func (b *board) change(name string, deed func() error) error {
	if err := b.fail[name]; err != nil {
		return err
	}
	b.changes++
	if b.crashAt > 0 && (b.changes > b.crashAt || b.changes == b.crashAt && !b.crashAfter) {
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

func (b *board) MIG(context.Context, inventory.GPUID) (inventory.MIG, error) {
	if b.crashAt > 0 && b.changes >= b.crashAt {
		return inventory.MIG{}, errCrash
	}
	state := b.gpu.MIG
	state.Instances = slices.Clone(state.Instances)
	for i := range state.Instances {
		state.Instances[i].Compute = slices.Clone(state.Instances[i].Compute)
	}
	return state, b.fail["MIG"]
}

func (b *board) find(id int) *inventory.MIGInstance {
	i := slices.IndexFunc(b.gpu.MIG.Instances, func(i inventory.MIGInstance) bool { return i.ID == id })
	return &b.gpu.MIG.Instances[i]
}

func (b *board) CreateGPUInstance(_ context.Context, _ inventory.GPUID, profile int, at inventory.MIGPlacement) (int, error) {
	return at.Start, b.change("CreateGPUInstance", func() error {
		if slices.ContainsFunc(b.gpu.MIG.Instances, func(i inventory.MIGInstance) bool { return i.Placement.Overlaps(at) }) {
			return inventory.ErrNoRoom
		}
		b.gpu.MIG.Instances = append(b.gpu.MIG.Instances, inventory.MIGInstance{ID: at.Start, ProfileID: profile, Placement: at})
		return nil
	})
}

func (b *board) CreateComputeInstance(_ context.Context, _ inventory.GPUID, id int) (int, error) {
	return 0, b.change("CreateComputeInstance", func() error {
		if err := b.fail[fmt.Sprintf("CreateComputeInstance %d", id)]; err != nil {
			return err
		}
		i := b.find(id)
		i.Compute = append(i.Compute, inventory.MIGCompute{UUID: fmt.Sprintf("MIG-%d", id)})
		return nil
	})
}

func (b *board) DestroyComputeInstance(_ context.Context, _ inventory.GPUID, id, _ int) error {
	return b.change("DestroyComputeInstance", func() error {
		if b.busy[id] {
			return inventory.ErrInUse
		}
		b.find(id).Compute = nil
		return nil
	})
}

func (b *board) DestroyGPUInstance(_ context.Context, _ inventory.GPUID, id int) error {
	return b.change("DestroyGPUInstance", func() error {
		b.gpu.MIG.Instances = slices.DeleteFunc(b.gpu.MIG.Instances, func(i inventory.MIGInstance) bool { return i.ID == id })
		return nil
	})
}

func (b *board) SetMIGMode(_ context.Context, _ inventory.GPUID, on bool) error {
	return b.change("SetMIGMode", func() error {
		if len(b.gpu.MIG.Instances) > 0 {
			return inventory.ErrInUse
		}
		b.gpu.MIG.Enabled, b.gpu.MIG.PendingEnabled = on, on
		return nil
	})
}

func (b *board) Processes(context.Context, inventory.GPUID) ([]inventory.Process, error) {
	return b.processes, b.fail["Processes"]
}

// rig is a board with an applier that lives as long as its process.
type rig struct {
	*board
	t       testing.TB
	ledger  *ledger.Ledger
	applier *applier.Applier
	holders []claims.Ref
	locked  error
	changed int
}

func newRig(t testing.TB) *rig {
	t.Helper()
	g := migtest.Snapshot(t, "hgx-h100-8").GPUs[0]
	r := &rig{board: &board{gpu: g, busy: map[int]bool{}, fail: map[string]error{}}, t: t, ledger: ledger.New(t.TempDir(), "boot")}
	r.restart()
	return r
}

func (r *rig) restart() {
	r.changes, r.crashAt = 0, 0
	r.applier = applier.New(applier.Config{Hardware: r.board, Locks: r, Claims: r, Ledger: r.ledger, Changed: func() { r.changed++ }})
}

func (r *rig) Lock(context.Context, lock.Key) (func(), error) { return func() {}, r.locked }

func (r *rig) Holders(pci.Address) ([]claims.Ref, error) { return r.holders, nil }

func (r *rig) Scan(ctx context.Context) (inventory.Snapshot, error) {
	g := r.gpu
	state, err := r.board.MIG(ctx, inventory.GPUID{})
	g.MIG = state
	return inventory.Snapshot{Driver: inventory.Driver{Present: true}, GPUs: []inventory.GPU{g}}, err
}

// apply works once towards a layout, written as "1g.10gb=2"; "off" is the mode off and "-" none.
func (r *rig) apply(text string) applier.Status {
	r.t.Helper()
	s, err := ledger.Marker{Scanner: r, Ledger: r.ledger}.Scan(r.t.Context())
	if err != nil {
		return applier.Status{State: applier.Failed, Reason: err.Error()}
	}
	layouts := layout.Layouts{}
	if text != "-" {
		l := layout.Layout{Config: "test", Enabled: text != "off", Profiles: map[string]int{}}
		for _, part := range strings.Fields(strings.TrimPrefix(text, "off")) {
			name, count, _ := strings.Cut(part, "=")
			n := 0
			if _, err := fmt.Sscan(count, &n); err != nil {
				r.t.Fatal(err)
			}
			l.Profiles[name] = n
		}
		layouts[r.gpu.PCI] = l
	}
	statuses := r.applier.Apply(r.t.Context(), s, layouts)
	if len(statuses) == 0 {
		return applier.Status{State: applier.Applied}
	}
	return statuses[0]
}

// has are the GPU's mode and instances.
func (r *rig) has() []string {
	geometry, _ := mig.NewGeometry(r.gpu)
	out := []string{fmt.Sprintf("mode %t", r.gpu.MIG.Enabled)}
	for _, i := range r.gpu.MIG.Instances {
		out = append(out, fmt.Sprintf("%s:%d/%d", geometry.PartitionOf(i).Profile.Name, i.Placement.Start, len(i.Compute)))
	}
	slices.Sort(out)
	return out
}

func (r *rig) want(status applier.Status, state applier.State, reason string, has ...string) {
	r.t.Helper()
	if status.State != state || !strings.Contains(status.Reason, reason) || (reason == "") != (status.Reason == "") {
		r.t.Errorf("state %s, reason %q; want %s, %q", status.State, status.Reason, state, reason)
	}
	slices.Sort(has)
	if diff := cmp.Diff(has, r.has()); diff != "" {
		r.t.Errorf("GPU (-want +got):\n%s", diff)
	}
}

// other makes an instance as another tool does.
func (r *rig) other(name string) {
	g := migtest.With(r.t, r.gpu, false, name)
	g.MIG.Instances[len(g.MIG.Instances)-1].ID = g.MIG.Instances[len(g.MIG.Instances)-1].Placement.Start
	r.gpu = g
}

// From one layout to the next, and back to nothing.
func TestApply(t *testing.T) {
	r := newRig(t)
	r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Applied, "", "mode true", "3g.40gb:4/1", "1g.10gb:3/1")
	if r.changed == 0 {
		t.Error("nobody was told")
	}
	r.changed = 0
	r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Applied, "", "mode true", "3g.40gb:4/1", "1g.10gb:3/1")
	if r.changed != 0 {
		t.Error("changed although there was nothing to do")
	}
	r.want(r.apply("2g.20gb=2"), applier.Applied, "", "mode true", "2g.20gb:2/1", "2g.20gb:0/1")
	r.want(r.apply("off"), applier.Applied, "", "mode false")
	r.want(r.apply("1g.10gb=1"), applier.Applied, "", "mode true", "1g.10gb:6/1")
	r.want(r.apply("-"), applier.Applied, "", "mode false")
	if !r.ledger.Empty() {
		t.Error("the ledger is not empty")
	}
}

// A GPU in use is left as it is, but for what is made beside those in use.
func TestInUse(t *testing.T) {
	for name, use := range map[string]func(*rig){
		"a claim":     func(r *rig) { r.holders = []claims.Ref{{Namespace: "ns", Name: "claim"}} },
		"a program":   func(r *rig) { r.processes = []inventory.Process{{PID: 42}} },
		"an instance": func(r *rig) { r.busy[6] = true },
		"a call":      func(r *rig) { r.locked = &lock.TimeoutError{Key: "gpu", Err: context.DeadlineExceeded} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.want(r.apply("1g.10gb=1"), applier.Applied, "", "mode true", "1g.10gb:6/1")
				use(r)
				r.want(r.apply("7g.80gb=1"), applier.Pending, "in use by", "mode true", "1g.10gb:6/1")
				r.want(r.apply("-"), applier.Pending, "in use by", "mode true", "1g.10gb:6/1")
				if r.locked == nil {
					r.want(r.apply("1g.10gb=2"), applier.Applied, "", "mode true", "1g.10gb:6/1", "1g.10gb:5/1")
				}
				r.holders, r.processes, r.busy, r.locked = nil, nil, nil, nil
				r.want(r.apply("7g.80gb=1"), applier.Applied, "", "mode true", "7g.80gb:0/1")
			})
		})
	}
}

// What others made stays, and so does what claims have.
func TestNothingOfOthersIsTouched(t *testing.T) {
	r := newRig(t)
	r.other("1g.10gb:0")
	r.want(r.apply("1g.10gb=2"), applier.Applied, "", "mode true", "1g.10gb:0/1", "1g.10gb:3/1")
	r.want(r.apply("7g.80gb=1"), applier.Failed, "what another tool made", "mode true", "1g.10gb:0/1", "1g.10gb:3/1")
	r.want(r.apply("off"), applier.Failed, "what another tool made", "mode true", "1g.10gb:0/1", "1g.10gb:3/1")
	r.want(r.apply("-"), applier.Applied, "", "mode true", "1g.10gb:0/1")

	// A claim's partition is ours, and removed only when nobody has it any more.
	r = newRig(t)
	r.gpu = migtest.With(t, r.gpu, true, "1g.10gb:6")
	r.gpu.MIG.Instances[0].ID = 6
	id := inventory.GPUID{PCI: r.gpu.PCI, UUID: r.gpu.UUID}
	at := ledger.Instance{Profile: r.gpu.MIG.Instances[0].ProfileID, Start: 6, Size: 1}
	if err := errors.Join(r.ledger.SetMode(id, true), r.ledger.Add(id, at)); err != nil {
		t.Fatal(err)
	}
	r.gpu.MIG.Instances[0].Ours = false // as a scan finds it
	r.holders = []claims.Ref{{Namespace: "ns", Name: "claim"}}
	r.want(r.apply("1g.10gb=1"), applier.Pending, "claim ns/claim", "mode true", "1g.10gb:6/1")
	r.holders = nil
	r.want(r.apply("1g.10gb=1"), applier.Applied, "", "mode true", "1g.10gb:6/1")
	claimsEntry, err := r.ledger.Read(id)
	if err != nil || claimsEntry.Mode || len(claimsEntry.Instances) > 0 {
		t.Errorf("claims still have %+v, %v", claimsEntry, err)
	}
	// The mode that claims switched on goes with the layout now.
	r.want(r.apply("-"), applier.Applied, "", "mode false")
}

// A failed attempt leaves nothing of itself, and is repeated after a while, or at once for
// another layout.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fail["CreateComputeInstance 3"] = errors.New("unknown error")
		r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Failed, "unknown error", "mode false")
		if !r.ledger.Empty() {
			t.Error("the ledger is not empty")
		}
		tried := r.changes
		r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Failed, "unknown error", "mode false")
		if r.changes != tried {
			t.Error("tried again at once")
		}
		r.want(r.apply("2g.20gb=1"), applier.Applied, "", "mode true", "2g.20gb:4/1")
		r.want(r.apply("off"), applier.Applied, "", "mode false")
		r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Failed, "unknown error", "mode false")
		r.fail = nil
		time.Sleep(6 * time.Minute)
		r.want(r.apply("3g.40gb=1 1g.10gb=1"), applier.Applied, "", "mode true", "3g.40gb:4/1", "1g.10gb:3/1")
	})
	r := newRig(t)
	r.fail["MIG"] = inventory.ErrLost
	s := inventory.Snapshot{GPUs: []inventory.GPU{r.gpu}}
	statuses := r.applier.Apply(t.Context(), s, layout.Layouts{r.gpu.PCI: {Enabled: true, Profiles: map[string]int{"1g.10gb": 1}}})
	if len(statuses) != 1 || statuses[0].State != applier.Failed {
		t.Errorf("states %+v", statuses)
	}
}

// A process may die before or after every change; the next one ends where it would have, and one
// that is to undo the layout leaves nothing.
func TestCrashes(t *testing.T) {
	const from, to = "1g.10gb=2 3g.40gb=1", "2g.20gb=1"
	for _, after := range []bool{false, true} {
		for _, next := range []string{to, "-"} {
			for at := 1; ; at++ {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.crashAt, r.crashAfter = at, after
					first := r.apply(from)
					if first.State == applier.Applied {
						first = r.apply(to)
					}
					r.restart()
					second := r.apply(next)
					if next == "-" {
						r.want(second, applier.Applied, "", "mode false")
						// What was noted and not done is forgotten when nothing else is to do.
						r.apply(next)
						if !r.ledger.Empty() {
							t.Error("the ledger is not empty")
						}
					} else {
						r.want(second, applier.Applied, "", "mode true", "2g.20gb:4/1")
					}
					if t.Failed() {
						t.Logf("this was change %d, after it %t, then %q; the first process ended with %+v", at, after, next, first)
					}
					if first.State == applier.Applied {
						if at < 10 {
							t.Errorf("only %d changes", at)
						}
						at = -1
					}
				})
				if at < 0 || t.Failed() {
					break
				}
			}
		}
	}
}

// Claims that come later than a layout see its instances as others'.
func TestClaimsSeeStaticDevices(t *testing.T) {
	r := newRig(t)
	r.want(r.apply("3g.40gb=1"), applier.Applied, "", "mode true", "3g.40gb:4/1")
	s, err := ledger.Marker{Scanner: r, Ledger: r.ledger}.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, _ := topology.Resolve(s, topology.Memory{})
	for _, d := range device.FromPartitionedSnapshot(s, a, nil).Devices {
		if m, ok := d.(device.MIG); ok && m.Instance() != nil && !m.Static() {
			t.Errorf("%s is not static", m.Name())
		}
		if d.Kind() == device.KindGPU {
			t.Error("the whole GPU is offered")
		}
	}
}

package migsteps_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
)

func kinds(steps []journal.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Kind)
	}
	return out
}

func nodes(t testing.TB, e cdi.Edits, err error) []string {
	t.Helper()
	must(t, err)
	var out []string
	for _, n := range e.Nodes {
		out = append(out, n.Name)
	}
	return out
}

// A claim's whole life on a GPU that nobody partitioned: the mode goes on, an instance is made,
// the container gets three nodes, and in the end all is as before.
func TestLifeOfAPartition(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	steps := r.steps(t, "2g-20gb-4")
	if diff := cmp.Diff([]string{"mig-mode", "mig-instance"}, kinds(steps)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	want := fmt.Sprintf(`{"pci":%q,"gpuUUID":%q,"profile":14,"profileName":"2g.20gb","start":4,"size":2}`, r.gpu.PCI, r.gpu.UUID)
	if got := string(steps[1].Params); got != want {
		t.Errorf("parameters %s, want %s", got, want)
	}
	must(t, r.do(t.Context(), steps))
	if got := string(steps[1].Output); got != `{"gpuInstance":14,"computeInstance":0,"uuid":"MIG-14"}` || r.switched != 1 {
		t.Errorf("output %s, %d switches", got, r.switched)
	}
	h := migsteps.Handler{Numbers: numbers{r.board}}
	// The minor number is that of now, not of the look before the mode was switched.
	before := claims.Device{Device: r.device(t, "2g-20gb-4").Device}
	edits, err := h.Edits(before, steps)
	if diff := cmp.Diff([]string{"nvidia10", "nvidia-caps/nvidia-cap1014", "nvidia-caps/nvidia-cap2014"}, nodes(t, edits, err)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	// Done once more, all is found.
	made := r.changes
	must(t, r.do(t.Context(), steps))
	if r.changes != made {
		t.Errorf("doing it again changed something: %v", r.calls)
	}
	must(t, r.undo(t.Context(), steps))
	if r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) > 0 || !r.ledger.Empty() || r.switched != 2 {
		t.Errorf("in the end: %+v, ledger empty %t, %d switches", r.gpu.MIG, r.ledger.Empty(), r.switched)
	}
	made = r.changes
	must(t, r.undo(t.Context(), steps))
	if r.changes != made {
		t.Errorf("undoing it again changed something: %v", r.calls)
	}
}

// The mode goes off with the last partition, whoever of ours switched it on.
func TestModeStaysWhileSomebodyLivesThere(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	first, second := r.steps(t, "1g-10gb-6"), r.steps(t, "3g-40gb-0")
	must(t, r.do(t.Context(), first))
	must(t, r.do(t.Context(), second))
	must(t, r.undo(t.Context(), first))
	if !r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) != 1 {
		t.Fatalf("after the first: %+v", r.gpu.MIG)
	}
	must(t, r.undo(t.Context(), second))
	if r.gpu.MIG.Enabled {
		t.Error("after the second the mode is on")
	}
	// A mode that somebody else switched on stays on.
	r.gpu.MIG.Enabled, r.gpu.MIG.PendingEnabled = true, true
	must(t, r.do(t.Context(), first))
	must(t, r.undo(t.Context(), first))
	if !r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) != 0 {
		t.Errorf("of others: %+v", r.gpu.MIG)
	}
	// And so does one of ours while an instance of others is there.
	r.gpu.MIG.Enabled, r.gpu.MIG.PendingEnabled = false, false
	must(t, r.do(t.Context(), first))
	r.gpu = migtest.With(t, r.gpu, false, "1g.10gb:0")
	must(t, r.undo(t.Context(), first))
	if !r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) != 1 || r.ledger.Empty() {
		t.Errorf("beside others: %+v", r.gpu.MIG)
	}
}

// Ampere switches with a reset only: no step does that.
func TestAmpere(t *testing.T) {
	r := newRig(t, "dgx-a100-80")
	r.gpu.MIG.Enabled, r.gpu.MIG.PendingEnabled = true, true
	steps := r.steps(t, "1g-10gb-6")
	if diff := cmp.Diff([]string{"mig-instance"}, kinds(steps)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	must(t, r.do(t.Context(), steps))
	must(t, r.undo(t.Context(), steps))
	r.gpu.MIG.Enabled, r.gpu.MIG.PendingEnabled = false, false
	var mode *migsteps.ModeError
	if err := r.do(t.Context(), steps); !errors.As(err, &mode) || !strings.Contains(err.Error(), "it is off") {
		t.Errorf("with the mode off: %v", err)
	}
	if !r.ledger.Empty() {
		t.Error("the ledger has an entry")
	}
}

func modeParams(r *rig) jsontext.Value {
	return jsontext.Value(fmt.Sprintf(`{"pci":%q,"gpuUUID":%q}`, r.gpu.PCI, r.gpu.UUID))
}

// A switch that is refused leaves neither a pending mode nor an entry.
func TestModeThatCannotBeSwitchedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			spoil func(*rig)
			says  string
		}{
			"needs a reset":       {func(r *rig) { r.needsReset = true }, "reset of the GPU"},
			"a program runs":      {func(r *rig) { r.processes = []inventory.Process{{PID: 77, Instance: -1}} }, "by processes 77"},
			"somebody holds it":   {func(r *rig) { r.busy["SetMIGMode"] = 1000 }, "a monitoring agent may hold it"},
			"somebody's is to be": {func(r *rig) { r.gpu.MIG.PendingEnabled = true }, "somebody asked for it"},
		} {
			r := newRig(t, "hgx-h100-8")
			pending := false
			c.spoil(r)
			pending = r.gpu.MIG.PendingEnabled
			_, err := r.mode().Do(t.Context(), modeParams(r))
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), r.gpu.PCI.String()) {
				t.Errorf("%s: %v", name, err)
			}
			if r.gpu.MIG.Enabled || r.gpu.MIG.PendingEnabled != pending || !r.ledger.Empty() {
				t.Errorf("%s: afterwards %+v, ledger empty %t", name, r.gpu.MIG, r.ledger.Empty())
			}
		}
	})
}

// Programs that end within the patience are waited for.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "hgx-h100-8")
		r.busy["SetMIGMode"] = 3
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		r.busy["DestroyComputeInstance"], r.busy["DestroyGPUInstance"] = 4, 2
		must(t, r.undo(t.Context(), steps))
		if r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) > 0 {
			t.Errorf("in the end: %+v", r.gpu.MIG)
		}
	})
}

// An instance in use stays ours, and its claim's record with it.
func TestInstanceInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		r.processes = []inventory.Process{{PID: 41, Instance: 3}, {PID: 42, Instance: 16}}
		r.busy["DestroyComputeInstance"] = 1000
		err := r.undo(t.Context(), steps)
		var busy *migsteps.InUseError
		if !errors.As(err, &busy) || !errors.Is(err, inventory.ErrInUse) || !strings.Contains(err.Error(), "by processes 42)") {
			t.Fatalf("error %v", err)
		}
		r.processes, r.busy = nil, map[string]int{}
		if s := r.snapshot(t); !s.GPUs[0].MIG.Instances[0].Ours || !s.GPUs[0].MIG.Ours {
			t.Errorf("it is not ours any more: %+v", s.GPUs[0].MIG)
		}
		// The caller's own time ends the wait too.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.busy["DestroyComputeInstance"] = 1
		if err := r.undo(ctx, steps); !errors.As(err, &busy) {
			t.Errorf("without time: %v", err)
		}
		must(t, r.undo(t.Context(), steps))
	})
}

// A GPU whose mode cannot be switched off in the end stays usable: partitions as before, the
// whole after it switched the mode off itself.
func TestModeThatStaysOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		r.busy["SetMIGMode"] = 1000
		must(t, r.undo(t.Context(), steps))
		if !r.gpu.MIG.Enabled || r.ledger.Empty() {
			t.Fatalf("the mode went off: %+v", r.gpu.MIG)
		}
		whole := migsteps.WholeHandler{Numbers: numbers{r.board}}
		off, err := whole.Steps(r.device(t, ""))
		must(t, err)
		if diff := cmp.Diff([]string{"mig-off"}, kinds(off)); diff != "" {
			t.Fatalf("steps of the whole GPU (-want +got):\n%s", diff)
		}
		var busy *migsteps.InUseError
		if err := r.do(t.Context(), off); !errors.As(err, &busy) {
			t.Errorf("while it is held: %v", err)
		}
		r.busy["SetMIGMode"] = 0
		must(t, r.do(t.Context(), off))
		edits, err := whole.Edits(r.device(t, ""), off)
		if diff := cmp.Diff([]string{"nvidia20"}, nodes(t, edits, err)); diff != "" || r.gpu.MIG.Enabled || !r.ledger.Empty() {
			t.Errorf("mode %t, nodes (-want +got):\n%s", r.gpu.MIG.Enabled, diff)
		}
		must(t, r.undo(t.Context(), off))
		if none, err := whole.Steps(r.device(t, "")); err != nil || len(none) != 0 {
			t.Errorf("steps of a GPU in no mode: %v, %v", none, err)
		}
		// Somebody else's mode is not switched off.
		r.gpu.MIG.Enabled = true
		var mode *migsteps.ModeError
		if err := r.do(t.Context(), off); !errors.As(err, &mode) || !r.gpu.MIG.Enabled {
			t.Errorf("of others: %v", err)
		}
	})
}

// What another tool made in the meantime is in the way and stays.
func TestForeignInstances(t *testing.T) {
	for name, instance := range map[string]string{"at the same place": "1g.10gb:6", "of another profile": "1g.10gb+me:6", "overlapping": "3g.40gb:4"} {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		r.gpu = migtest.With(t, r.gpu, false, instance)
		var taken *migsteps.TakenError
		if err := r.do(t.Context(), steps); !errors.As(err, &taken) || !strings.Contains(err.Error(), "6:1") {
			t.Errorf("%s: %v", name, err)
		}
		must(t, r.undo(t.Context(), steps))
		if len(r.gpu.MIG.Instances) != 1 || !r.ledger.Empty() {
			t.Errorf("%s: afterwards %+v", name, r.gpu.MIG.Instances)
		}
	}
	// Between the look and the deed.
	r := newRig(t, "hgx-h100-8")
	steps := r.steps(t, "1g-10gb-6")
	r.gpu = migtest.With(t, r.gpu, false, "1g.10gb:0")
	r.fail["CreateGPUInstance"] = []error{inventory.ErrNoRoom}
	if err := r.do(t.Context(), steps); !errors.Is(err, inventory.ErrNoRoom) || !strings.Contains(err.Error(), "the GPU has 1 instances") {
		t.Errorf("no room for another reason: %v", err)
	}
	must(t, r.undo(t.Context(), steps))
	if len(r.gpu.MIG.Instances) != 1 {
		t.Errorf("afterwards %+v", r.gpu.MIG.Instances)
	}
}

// An instance of ours whose record was lost is in nobody's way.
func TestLeftoversOfOurs(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	must(t, r.do(t.Context(), r.steps(t, "3g-40gb-4")))
	steps := r.steps(t, "1g-10gb-6")
	must(t, r.do(t.Context(), steps))
	if got := r.gpu.MIG.Instances; len(got) != 1 || got[0].Placement.Start != 6 {
		t.Errorf("instances %+v", got)
	}
	must(t, r.undo(t.Context(), steps))
	if !r.ledger.Empty() {
		t.Error("the ledger still has an entry")
	}
}

// What was made is read back.
func TestMismatch(t *testing.T) {
	for name, spoil := range map[string]func(*rig){
		"two compute instances": func(r *rig) {
			i := &r.gpu.MIG.Instances[0]
			i.Compute = append(i.Compute, inventory.MIGCompute{ID: 1, UUID: "MIG-x"})
		},
		"no UUID": func(r *rig) { r.gpu.MIG.Instances[0].Compute[0].UUID = "" },
	} {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		spoil(r)
		var mismatch *migsteps.MismatchError
		if err := r.do(t.Context(), steps); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), r.gpu.PCI.String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := newRig(t, "hgx-h100-8")
	steps := r.steps(t, "1g-10gb-6")
	r.gpu.MIG.Enabled = true
	liar := migsteps.Instance{Hardware: lying{r.board}, Users: r.board, Ledger: r.ledger, Patience: patience}
	var mismatch *migsteps.MismatchError
	if _, err := liar.Do(t.Context(), steps[1].Params); !errors.As(err, &mismatch) {
		t.Errorf("an instance at another place: %v", err)
	}
}

// lying makes instances where nobody wanted them.
type lying struct{ *board }

func (l lying) CreateGPUInstance(ctx context.Context, gpu inventory.GPUID, profile int, at inventory.MIGPlacement) (int, error) {
	at.Start -= 2
	return l.board.CreateGPUInstance(ctx, gpu, profile, at)
}

// A board that is gone, or another one in its place, takes with it what was done to it.
func TestGoneBoards(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"lost":      func(r *rig) { r.fail["MIG"] = slices.Repeat([]error{inventory.ErrLost}, 9) },
		"unplugged": func(r *rig) { r.fail["MIG"] = slices.Repeat([]error{inventory.ErrNoSuchGPU}, 9) },
		"swapped":   func(r *rig) { r.gpu.UUID = "GPU-new" },
	} {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		lose(r)
		if err := r.undo(t.Context(), steps); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.do(t.Context(), steps); err == nil {
			t.Errorf("%s: steps can be done", name)
		}
	}
	r := newRig(t, "hgx-h100-8")
	steps := r.steps(t, "1g-10gb-6")
	must(t, r.do(t.Context(), steps))
	r.fail["MIG"] = []error{inventory.ErrHung}
	if err := r.undo(t.Context(), steps); !errors.Is(err, inventory.ErrHung) || r.ledger.Empty() {
		t.Errorf("a driver that hangs: %v", err)
	}
	must(t, r.undo(t.Context(), steps))
}

// Records of a release that wrote something else are refused, not misread.
func TestBadParameters(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	for _, kind := range []string{migsteps.KindMode, migsteps.KindInstance, migsteps.KindOff} {
		for _, params := range []string{``, `[]`, `{"pci":"nonsense"}`} {
			if _, err := r.executor(kind).Do(t.Context(), jsontext.Value(params)); err == nil || !strings.Contains(err.Error(), kind) {
				t.Errorf("do %s with %q: %v", kind, params, err)
			}
			if err := r.executor(kind).Undo(t.Context(), jsontext.Value(params), nil); err == nil && kind != migsteps.KindOff {
				t.Errorf("undo %s with %q", kind, params)
			}
		}
	}
	if len(r.calls) > 0 {
		t.Errorf("calls %v", r.calls)
	}
}

// Who made a partition decides what is done for it, and admins do nothing to it.
func TestHandler(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	h := migsteps.Handler{Numbers: numbers{r.board}}
	r.gpu = migtest.With(t, r.gpu, false, "1g.10gb:6")
	static := r.device(t, "1g-10gb-6")
	if steps, err := h.Steps(static); err != nil || len(steps) != 0 {
		t.Errorf("steps of what is there: %v, %v", steps, err)
	}
	edits, err := h.Edits(static, nil)
	if diff := cmp.Diff([]string{"nvidia0", "nvidia-caps/nvidia-cap1013", "nvidia-caps/nvidia-cap2013"}, nodes(t, edits, err)); diff != "" {
		t.Errorf("nodes of what is there (-want +got):\n%s", diff)
	}
	free := r.device(t, "1g-10gb-0")
	if _, err := h.Edits(free, nil); err == nil || !strings.Contains(err.Error(), "removed by another tool") {
		t.Errorf("edits of what is not there: %v", err)
	}
	free.AdminAccess = true
	edits, err = h.Edits(free, nil)
	if diff := cmp.Diff([]string{"nvidia0"}, nodes(t, edits, err)); diff != "" {
		t.Errorf("an admin's nodes of what is not there (-want +got):\n%s", diff)
	}
	static.AdminAccess = true
	edits, err = h.Edits(static, nil)
	if len(nodes(t, edits, err)) != 3 {
		t.Errorf("an admin's nodes of what is there: %+v", edits.Nodes)
	}
	// It went since the last look.
	r.gpu.MIG.Instances = nil
	edits, err = h.Edits(static, nil)
	if len(nodes(t, edits, err)) != 1 {
		t.Errorf("an admin's nodes of what went: %+v", edits.Nodes)
	}
	static.AdminAccess = false
	if _, err := h.Edits(static, nil); err == nil {
		t.Error("no error for what went")
	}
	other := claims.Device{Device: r.device(t, "1g-10gb-0").Device}
	r.gpu.PCI.Bus++
	if _, err := h.Edits(other, nil); err == nil {
		t.Error("no error for a GPU that the kernel does not show")
	}
	if _, err := (migsteps.WholeHandler{Numbers: numbers{r.board}}).Edits(other, nil); err == nil {
		t.Error("no error for a whole GPU that the kernel does not show")
	}
}

func TestWrongKinds(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	whole, part := r.device(t, ""), r.device(t, "1g-10gb-0")
	h := migsteps.Handler{Numbers: numbers{r.board}}
	if _, err := h.Steps(whole); err == nil {
		t.Error("a whole GPU has steps of a partition")
	}
	if _, err := h.Edits(whole, nil); err == nil {
		t.Error("a whole GPU has edits of a partition")
	}
	if _, err := (migsteps.WholeHandler{}).Steps(part); err == nil {
		t.Error("a partition has steps of a whole GPU")
	}
	if part.Device.Kind() != device.KindMIG {
		t.Errorf("kind %s", part.Device.Kind())
	}
}

// A process that dies at any change of the hardware, before or after it, leaves nothing that a
// later undo does not find, and doing it again comes to the same end.
func TestCrashAtEveryChange(t *testing.T) {
	for _, after := range []bool{false, true} {
		for at := 1; ; at++ {
			r := newRig(t, "hgx-h100-8")
			steps := r.steps(t, "2g-20gb-0")
			r.crashAt, r.crashAfter = at, after
			err := r.do(t.Context(), steps)
			if err == nil {
				err = r.undo(t.Context(), steps)
			}
			if err == nil {
				if at < 6 {
					t.Errorf("only %d changes were made", at-1)
				}
				break
			}
			if !errors.Is(err, errCrash) {
				t.Fatalf("change %d: %v", at, err)
			}
			for _, again := range []func() error{
				func() error { return r.do(t.Context(), steps) },
				func() error { return r.undo(t.Context(), steps) },
			} {
				if err := again(); err != nil {
					t.Errorf("after the crash at change %d (after it: %t): %v", at, after, err)
				}
			}
			if r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) > 0 || !r.ledger.Empty() {
				t.Errorf("crash at change %d (after it: %t) leaves %+v, ledger empty %t", at, after, r.gpu.MIG, r.ledger.Empty())
			}
		}
	}
}

// Whatever fails on the way, what others made is there in the end, and nothing of ours.
func TestFailuresAtEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		for _, call := range []string{"MIG", "CreateGPUInstance", "CreateComputeInstance", "DestroyComputeInstance", "DestroyGPUInstance", "SetMIGMode", "Processes"} {
			for skip := range 8 {
				r := newRig(t, "hgx-h100-8")
				steps := r.steps(t, "1g-10gb-6")
				r.gpu.MIG.Enabled = false
				r.fail[call] = append(make([]error, skip), broken)
				failed := r.do(t.Context(), steps)
				undone := r.undo(t.Context(), steps)
				if failed == nil && undone == nil && len(r.fail[call]) == 0 && call != "Processes" {
					t.Errorf("%s number %d fails and nobody says so", call, skip)
				}
				r.fail = map[string][]error{}
				must(t, r.undo(t.Context(), steps))
				if r.gpu.MIG.Enabled || len(r.gpu.MIG.Instances) > 0 || !r.ledger.Empty() {
					t.Errorf("%s number %d fails and leaves %+v, ledger empty %t", call, skip, r.gpu.MIG, r.ledger.Empty())
				}
			}
		}
	})
}

// A ledger that cannot be read or written stops everything before it is done.
func TestLedgerThatFails(t *testing.T) {
	r := newRig(t, "hgx-h100-8")
	steps := r.steps(t, "1g-10gb-6")
	dir := t.TempDir() + "/file"
	must(t, os.WriteFile(dir, nil, 0o600))
	r.ledger = ledger.New(dir, "boot")
	if err := r.do(t.Context(), steps); err == nil || r.gpu.MIG.Enabled {
		t.Errorf("mode: %v", err)
	}
	r.gpu.MIG.Enabled = true
	if err := r.do(t.Context(), steps); err == nil || len(r.gpu.MIG.Instances) > 0 {
		t.Errorf("instance: %v", err)
	}
}

func TestMade(t *testing.T) {
	done := journal.Step{Kind: migsteps.KindInstance, Output: jsontext.Value(`{"gpuInstance":3,"computeInstance":1,"uuid":"MIG-1"}`)}
	mode := journal.Step{Kind: migsteps.KindMode, Output: jsontext.Value(`{}`)}
	for name, test := range map[string]struct {
		steps []journal.Step
		want  string
	}{
		"none":       {nil, "0 0  false"},
		"the mode":   {[]journal.Step{mode}, "0 0  false"},
		"not done":   {[]journal.Step{mode, {Kind: migsteps.KindInstance}}, "0 0  false"},
		"made":       {[]journal.Step{mode, done}, "3 1 MIG-1 true"},
		"unreadable": {[]journal.Step{{Kind: migsteps.KindInstance, Output: jsontext.Value(`[]`)}}, "0 0  false"},
	} {
		gi, ci, uuid, made := migsteps.Made(test.steps)
		if got := fmt.Sprint(gi, " ", ci, " ", uuid, " ", made); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

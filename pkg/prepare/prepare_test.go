package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
)

func TestPrepareAnswersAndUnprepareLeavesNothing(t *testing.T) {
	n := newNode(t)
	counted := &counting{Store: n.store(t)}
	e := n.start(t, func(c *Config) { c.Journal = counted })
	p := plan("c1", gpu(1), gpu(3))
	p.Devices[1].Request = "big/first"
	want := []Prepared{{
		Request: "r0", Pool: "node", Device: "gpu-1", Identity: gpu(1).Identity(),
		CDIDeviceIDs: []string{"gpu.nvidia.com/claim=c1_r0_gpu-1", "gpu.nvidia.com/driver=base"},
	}, {
		Request: "big/first", Pool: "node", Device: "gpu-3", Identity: gpu(3).Identity(),
		CDIDeviceIDs: []string{"gpu.nvidia.com/claim=c1_big.first_gpu-3", "gpu.nvidia.com/driver=base"},
	}}
	for i := range 3 {
		if diff := cmp.Diff(want, prepareOK(t, e, p)); diff != "" {
			t.Errorf("call %d: %s", i, diff)
		}
		if counted.writes != 1 {
			t.Errorf("call %d: %d durable writes in all, want 1", i, counted.writes)
		}
	}
	if spec := n.spec(t, "c1"); !strings.Contains(spec, `"/dev/nvidia3"`) {
		t.Error(spec)
	}
	unprepareOK(t, e, "c1")
	if counted.writes != 2 {
		t.Errorf("%d durable writes in all, want 2", counted.writes)
	}
	n.clean(t)
	// Two pods may use one claim one after the other.
	prepareOK(t, e, p)
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestRecordSaysAllThatIsNeeded(t *testing.T) {
	n := newNode(t)
	prepareOK(t, n.start(t), plan("c1", part(2, "a")))
	r, err := n.store(t).Load("c1")
	must(t, err)
	if r.Namespace != "team" || r.Name != "claim-c1" || r.State != journal.StatePrepared || r.BootID != "boot-0" || time.Since(r.Created) > time.Hour {
		t.Errorf("record %+v", r)
	}
	d := r.Devices[0]
	if d.Kind != "mig" || d.PCI.Bus != 2 || d.GPUUUID != "GPU-2" || d.Partition != "a" || len(d.Steps) != 2 || !d.Steps[1].Done || string(d.Steps[0].Output) != "1" {
		t.Errorf("device %+v", d)
	}
}

func TestUnprepareOfTheUnknownWritesNothing(t *testing.T) {
	n := newNode(t)
	counted := &counting{Store: n.store(t)}
	e := n.start(t, func(c *Config) { c.Journal = counted })
	for range 2 {
		unprepareOK(t, e, "never-seen")
	}
	if counted.writes != 0 || len(n.hw.calls) != 0 {
		t.Errorf("%d writes, calls %v", counted.writes, n.hw.calls)
	}
	n.clean(t)
}

func TestNothingToDo(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	if prepared, err := e.Prepare(t.Context(), claims.Plan{Claim: claimOf("c1")}); err != nil || prepared != nil {
		t.Errorf("a plan without devices: %v, %v", prepared, err)
	}
	if _, err := e.Prepare(t.Context(), plan("../x", gpu(0))); err == nil || !strings.Contains(err.Error(), "claim UID") {
		t.Error(err)
	}
	if err := e.Unprepare(t.Context(), claimOf("../x")); err == nil {
		t.Error("a bad UID is taken")
	}
	n.clean(t)
}

func TestClaimOf32Devices(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	var boards []board
	for i := range 32 {
		boards = append(boards, gpu(i))
	}
	seen := map[string]bool{}
	for _, d := range prepareOK(t, e, plan("c1", boards...)) {
		if seen[d.CDIDeviceIDs[0]] {
			t.Errorf("%s is the first id of two devices", d.CDIDeviceIDs[0])
		}
		seen[d.CDIDeviceIDs[0]] = true
	}
	if len(seen) != 32 {
		t.Errorf("%d devices", len(seen))
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestTwoClaimsOnOneGPU(t *testing.T) {
	share := func(uid types.UID, b board, id types.UID) claims.Plan {
		p := plan(uid, b)
		p.Devices[0].ShareID = &id
		return p
	}
	admin := func(uid types.UID, b board) claims.Plan {
		p := plan(uid, b)
		p.Devices[0].AdminAccess = true
		return p
	}
	tests := []struct {
		name          string
		first, second claims.Plan
		held          bool
	}{
		{"same GPU", plan("a", gpu(1)), plan("b", gpu(1)), true},
		{"other GPU", plan("a", gpu(1)), plan("b", gpu(2)), false},
		{"one of two", plan("a", gpu(1)), plan("b", gpu(2), gpu(1)), true},
		{"a part of a GPU in use", plan("a", gpu(1)), plan("b", part(1, "x")), true},
		{"the whole of a GPU with a part in use", plan("a", part(1, "x")), plan("b", gpu(1)), true},
		{"two parts", plan("a", part(1, "x")), plan("b", part(1, "y")), false},
		{"the same part", plan("a", part(1, "x")), plan("b", part(1, "x")), true},
		{"admin beside an owner", plan("a", gpu(1)), admin("b", gpu(1)), false},
		{"owner beside an admin", admin("a", gpu(1)), plan("b", gpu(1)), false},
		{"two admins", admin("a", gpu(1)), admin("b", gpu(1)), false},
		{"two shares", share("a", gpu(1), "s1"), share("b", gpu(1), "s2"), false},
		{"a share of a GPU in use", plan("a", gpu(1)), share("b", gpu(1), "s1"), true},
		{"the whole of a shared GPU", share("a", gpu(1), "s1"), plan("b", gpu(1)), true},
		{"a share of a GPU with a part in use", plan("a", part(1, "x")), share("b", gpu(1), "s1"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			e := n.start(t)
			prepareOK(t, e, tt.first)
			before := n.leftovers(t)
			_, err := e.Prepare(t.Context(), tt.second)
			held := new(HeldError)
			if !tt.held {
				must(t, err)
			} else {
				if !errors.As(err, &held) || held.Holder != claimOf("a") || !strings.Contains(err.Error(), "team/claim-a (UID a)") {
					t.Fatalf("%v, want held by a", err)
				}
				if diff := cmp.Diff(before, n.leftovers(t)); diff != "" {
					t.Errorf("the refused claim left something: %s", diff)
				}
			}
			unprepareOK(t, e, "a")
			prepareOK(t, e, tt.second)
			unprepareOK(t, e, "b")
			n.clean(t)
		})
	}
}

func TestAdminAccessHasNoStepsAndHoldsNothing(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	p := plan("c1", part(1, "a"))
	p.Devices[0].AdminAccess = true
	prepareOK(t, e, p)
	if len(n.hw.calls) != 0 {
		t.Errorf("side effects: %v", n.hw.calls)
	}
	if entries := e.holders.entries(); len(entries) != 0 {
		t.Errorf("holders: %v", entries)
	}
	if _, err := n.store(t).Load("c1"); err != nil {
		t.Error(err)
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestFailingStepIsRolledBack(t *testing.T) {
	broken := errors.New("broken")
	for _, failing := range []string{"do carve gpu-1-a", "do wire gpu-1-a", "do wire gpu-2-b"} {
		t.Run(failing, func(t *testing.T) {
			n := newNode(t)
			e := n.start(t)
			n.hw.fault = func(call string) error {
				if call == failing {
					return broken
				}
				return nil
			}
			_, err := e.Prepare(t.Context(), plan("c1", part(1, "a"), part(2, "b")))
			step := new(StepError)
			if !errors.As(err, &step) || !errors.Is(err, broken) || step.Undo || !strings.Contains(err.Error(), failing[:7]) {
				t.Fatal(err)
			}
			n.clean(t)
			n.hw.fault = nil
			prepareOK(t, e, plan("c1", part(1, "a"), part(2, "b")))
			unprepareOK(t, e, "c1")
			n.clean(t)
		})
	}
}

func TestFailingUndoKeepsTheRecordAndTheDevice(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", part(1, "a"), part(2, "b")))
	n.hw.fault = func(call string) error {
		if call == "undo wire gpu-2-b" {
			return errors.New("in use")
		}
		return nil
	}
	n.hw.calls = nil
	err := e.Unprepare(t.Context(), claimOf("c1"))
	step := new(StepError)
	if !errors.As(err, &step) || !step.Undo || step.Device != "gpu-2-b" || !strings.Contains(err.Error(), "undo wire") {
		t.Fatal(err)
	}
	// The other device is undone, and what carries the failed step is not.
	if diff := cmp.Diff([]string{"undo wire gpu-2-b", "undo wire gpu-1-a", "undo carve gpu-1-a"}, n.hw.calls); diff != "" {
		t.Error(diff)
	}
	if r, err := n.store(t).Load("c1"); err != nil || r.State != journal.StateStarted || r.Devices[0].Steps[0].Done || !r.Devices[1].Steps[0].Done {
		t.Errorf("record %+v, %v", r, err)
	}
	if n.spec(t, "c1") != "" {
		t.Error("the CDI spec of a claim that is being undone is still there")
	}
	held := new(HeldError)
	if _, err := e.Prepare(t.Context(), plan("c2", part(2, "b"))); !errors.As(err, &held) {
		t.Errorf("the device that is not undone: %v", err)
	}
	n.hw.fault = nil
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestUnknownKinds(t *testing.T) {
	n := newNode(t)
	e := n.start(t, func(c *Config) { delete(c.Executors, "wire") })
	step := new(StepError)
	if _, err := e.Prepare(t.Context(), plan("c1", part(1, "a"))); !errors.As(err, &step) || len(n.hw.calls) > 0 {
		t.Errorf("a step that nobody can do: %v, %v", err, n.hw.calls)
	}
	e = n.start(t, func(c *Config) { c.Handlers = map[device.Kind]Handler{} })
	if _, err := e.Prepare(t.Context(), plan("c1", gpu(1))); err == nil || !strings.Contains(err.Error(), `kind "gpu"`) {
		t.Error(err)
	}
	n.clean(t)
	// A record of a newer release with a step that this one does not know is kept.
	prepareOK(t, n.start(t), plan("c2", part(1, "a")))
	e = n.start(t, func(c *Config) { delete(c.Executors, "wire") })
	if err := e.Unprepare(t.Context(), claimOf("c2")); !errors.As(err, &step) || !errors.Is(err, errNoExecutor) {
		t.Error(err)
	}
	unprepareOK(t, n.start(t), "c2")
	n.clean(t)
}

func TestMissingNodeFailsBeforeAnythingIsDone(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	delete(n.nodes, "nvidia1")
	node := new(cdi.NodeError)
	for _, b := range []board{gpu(1), part(1, "a")} {
		if _, err := e.Prepare(t.Context(), plan("c1", b)); !errors.As(err, &node) {
			t.Errorf("%s: %v", b.Name(), err)
		}
		n.clean(t)
	}
	n.nodes["nvidia1"] = true
	n.base = errors.New("no libcuda")
	if _, err := e.Prepare(t.Context(), plan("c1", gpu(1))); !errors.Is(err, n.base) {
		t.Error(err)
	}
	n.clean(t)
}

func TestDeviceWithoutMinor(t *testing.T) {
	if _, err := (GPUHandler{}).Edits(claims.Device{Device: unnumbered{gpu(1)}}, nil); err == nil || !strings.Contains(err.Error(), "no minor number") {
		t.Error(err)
	}
}

type unnumbered struct{ device.Device }

func TestNew(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(Config{HoldersDir: dir}); err == nil || !strings.Contains(err.Error(), "boot id") {
		t.Error(err)
	}
	file := filepath.Join(dir, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := New(Config{HoldersDir: file, BootID: "b"}); err == nil {
		t.Error("a file as directory of holders is taken")
	}
}

// failing is a journal whose disk fails at the n-th save.
type failing struct {
	*journal.Store
	at int
}

var errDisk = &journal.WriteError{Op: "write", Path: "x", Err: errors.New("no space")}

func (f *failing) Save(r *journal.Record) error {
	if f.at--; f.at == 0 {
		return errDisk
	}
	return f.Store.Save(r)
}

func TestFailingJournal(t *testing.T) {
	for at := 1; at <= 4; at++ {
		t.Run(fmt.Sprintf("save %d", at), func(t *testing.T) {
			n := newNode(t)
			e := n.start(t, func(c *Config) { c.Journal = &failing{n.store(t), at} })
			// Two devices of two steps: started, three steps, prepared.
			_, err := e.Prepare(t.Context(), plan("c1", part(1, "a"), part(2, "b")))
			if !errors.Is(err, errDisk) {
				t.Fatal(err)
			}
			n.clean(t)
		})
	}
}

func TestLockTimeout(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	unlock, err := e.Locks.Lock(t.Context(), claimKey("c1"))
	must(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	timeout := new(lock.TimeoutError)
	_, err = e.Prepare(ctx, plan("c1", gpu(1)))
	for _, err := range []error{err, e.Unprepare(ctx, claimOf("c1"))} {
		if !errors.As(err, &timeout) {
			t.Error(err)
		}
	}
}

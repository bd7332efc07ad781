package mpssteps_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/prepare/mpssteps"
	"github.com/gpu-dra/driver/pkg/reconcile"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

const (
	byDefault = inventory.ComputeDefault
	exclusive = inventory.ComputeExclusiveProcess
)

// share is a device of which several claims have a share.
func share(d claims.Device, n int) claims.Device {
	uid := types.UID(fmt.Sprintf("share-%d", n))
	d.ShareID = &uid
	return d
}

// The first claim sets, the last puts back, and what lies between changes nothing.
func TestSharedByEquals(t *testing.T) {
	r := newRig(t)
	r.live(t)
	a, b := planned("a", gpu{i: 0}, threads(25)), planned("b", gpu{i: 0}, threads(25))
	must(t, r.do(t, a))
	must(t, r.do(t, a)) // a crash before the record knew
	must(t, r.do(t, b))
	if r.modes["GPU-0"] != exclusive || r.sets != 1 {
		t.Errorf("mode %s after %d changes", r.modes["GPU-0"], r.sets)
	}
	percent := 25
	want := map[string]mps.Spec{"gpu-0000-01-00-0": {Devices: []mps.Device{{UUID: "GPU-0"}}, ActiveThreadPercentage: &percent}}
	if diff := cmp.Diff(want, r.running, cmp.Comparer(mps.Spec.Equal)); diff != "" {
		t.Error(diff)
	}
	must(t, r.undo(t, a))
	if r.modes["GPU-0"] != exclusive || len(r.running) != 1 {
		t.Errorf("the first to go took it: mode %s, daemons %v", r.modes["GPU-0"], r.running)
	}
	must(t, r.undo(t, b))
	must(t, r.undo(t, b))
	if r.modes["GPU-0"] != byDefault || len(r.running) != 0 || r.sets != 2 {
		t.Errorf("mode %s after %d changes, daemons %v", r.modes["GPU-0"], r.sets, r.running)
	}
	if left, err := os.ReadDir(r.layout.Devices()); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A device has one daemon: who wants another is told who has it.
func TestRefusedWithTheHoldersName(t *testing.T) {
	r := newRig(t)
	r.live(t)
	must(t, r.do(t, planned("a", gpu{i: 0}, threads(25))))
	for name, want := range map[string]claims.MPS{
		"threads": threads(50), "none": {}, "memory": {ActiveThreadPercentage: threads(25).ActiveThreadPercentage, PinnedMemoryBytes: 1 << 30},
		"users": {ActiveThreadPercentage: threads(25).ActiveThreadPercentage, MultiUser: true},
	} {
		other := planned("b", gpu{i: 0}, want)
		err := r.do(t, other)
		var conflict *mpssteps.ConflictError
		if !errors.As(err, &conflict) || !slices.Equal(conflict.Holders, []string{"team/a"}) || !strings.Contains(err.Error(), "25% of the threads") {
			t.Errorf("%s: %v", name, err)
		}
		must(t, r.undo(t, other))
	}
	if len(r.running) != 1 || r.modes["GPU-0"] != exclusive {
		t.Errorf("daemons %v, mode %s", r.running, r.modes["GPU-0"])
	}
	must(t, r.do(t, planned("b", gpu{i: 1}, threads(50))))
	// A claim whose record was lost holds nothing.
	delete(r.records, "uid-a")
	must(t, r.do(t, planned("c", gpu{i: 0}, threads(50))))
	if got := *r.running["gpu-0000-01-00-0"].ActiveThreadPercentage; got != 50 {
		t.Errorf("the daemon has %d%%", got)
	}
	must(t, r.undo(t, planned("c", gpu{i: 0}, threads(50))))
	if r.modes["GPU-0"] != byDefault {
		t.Errorf("mode %s", r.modes["GPU-0"])
	}
	// Nor does it keep the daemon.
	must(t, r.do(t, planned("d", gpu{i: 2}, threads(50))))
	must(t, r.do(t, planned("e", gpu{i: 2}, threads(50))))
	delete(r.records, "uid-d")
	must(t, r.undo(t, planned("e", gpu{i: 2}, threads(50))))
	if r.modes["GPU-2"] != byDefault {
		t.Errorf("mode %s", r.modes["GPU-2"])
	}
}

// What an admin had set is there again afterwards.
func TestTheModeBefore(t *testing.T) {
	for _, before := range []inventory.ComputeMode{byDefault, inventory.ComputeProhibited, exclusive} {
		r := newRig(t)
		r.live(t)
		r.modes["GPU-0"] = before
		a := planned("a", gpu{i: 0}, claims.MPS{})
		must(t, r.do(t, a))
		must(t, r.do(t, a))
		if r.modes["GPU-0"] != exclusive {
			t.Errorf("mode %s", r.modes["GPU-0"])
		}
		must(t, r.undo(t, a))
		if r.modes["GPU-0"] != before {
			t.Errorf("mode %s, before it was %s", r.modes["GPU-0"], before)
		}
	}
}

// A reboot takes modes and daemons: done again they are back, undone nothing is left.
func TestReboot(t *testing.T) {
	for _, again := range []bool{true, false} {
		r := newRig(t)
		r.live(t)
		a := planned("a", gpu{i: 0}, threads(25))
		must(t, r.do(t, a))
		r.modes["GPU-0"] = byDefault
		clear(r.running)
		if again {
			must(t, r.do(t, a))
			if r.modes["GPU-0"] != exclusive || len(r.running) != 1 {
				t.Errorf("mode %s, daemons %v", r.modes["GPU-0"], r.running)
			}
		}
		must(t, r.undo(t, a))
		if r.modes["GPU-0"] != byDefault || len(r.running) != 0 {
			t.Errorf("mode %s, daemons %v", r.modes["GPU-0"], r.running)
		}
	}
}

// A partition has a mode and a daemon of its own, and is named when it is there.
func TestPartitions(t *testing.T) {
	r := newRig(t)
	r.live(t)
	at := inventory.MIGPlacement{Start: 3, Size: 1}
	a := planned("a", part{gpu: gpu{i: 0}, at: at}, threads(25))
	if err := r.do(t, a); !errors.Is(err, inventory.ErrNoSuchGPU) {
		t.Errorf("a partition that is not there: %v", err)
	}
	r.parts[placeKey(id(0), at)] = "MIG-3"
	must(t, r.do(t, a))
	if spec := r.running["gpu-0000-01-00-0-mig-1g-10gb-3"]; len(spec.Devices) != 1 || spec.Devices[0].UUID != "MIG-3" {
		t.Errorf("daemons %+v", r.running)
	}
	if r.modes["MIG-3"] != exclusive || r.modes["GPU-0"] != byDefault {
		t.Errorf("modes %v", r.modes)
	}
	must(t, r.undo(t, a))
	if r.modes["MIG-3"] != byDefault || len(r.running) != 0 {
		t.Errorf("modes %v, daemons %v", r.modes, r.running)
	}

	// Where the driver does not take the mode, the daemon serves without.
	r.refuse = fmt.Errorf("call: %w", inventory.ErrNotSupported)
	must(t, r.do(t, a))
	if r.modes["MIG-3"] != byDefault || len(r.running) != 1 {
		t.Errorf("modes %v, daemons %v", r.modes, r.running)
	}
	// Somebody removes it meanwhile: with it goes what was set.
	delete(r.parts, placeKey(id(0), at))
	must(t, r.undo(t, a))
}

// A whole GPU on which the mode cannot be set is not shared: everybody could pass the daemon by.
func TestAModeThatIsRefused(t *testing.T) {
	r := newRig(t)
	r.live(t)
	r.refuse = errors.New("no permission")
	a := planned("a", gpu{i: 0}, threads(25))
	if err := r.do(t, a); !errors.Is(err, r.refuse) {
		t.Errorf("error %v", err)
	}
	if r.ensures != 0 {
		t.Error("a daemon was started")
	}
	must(t, r.undo(t, a))
}

// Nothing about a lost GPU keeps a pod from ending, and the mode is put back when it is well.
func TestLostGPU(t *testing.T) {
	r := newRig(t)
	r.live(t)
	a := planned("a", gpu{i: 0}, threads(25))
	must(t, r.do(t, a))
	r.lost[0] = true
	must(t, r.undo(t, a))
	if len(r.running) != 0 {
		t.Errorf("daemons %v", r.running)
	}
	o := mpssteps.Owner{Step: r.step()}
	things, err := o.Things(t.Context())
	must(t, err)
	if len(things) != 1 {
		t.Fatalf("things %+v", things)
	}
	if err := o.Remove(t.Context(), things[0]); !errors.Is(err, reconcile.ErrLater) {
		t.Errorf("while it is lost: %v", err)
	}
	r.lost[0] = false
	must(t, o.Remove(t.Context(), things[0]))
	if r.modes["GPU-0"] != byDefault {
		t.Errorf("mode %s", r.modes["GPU-0"])
	}
}

// Without a supervisor nothing is prepared; undoing waits for it while daemons may live.
func TestWithoutASupervisor(t *testing.T) {
	r := newRig(t)
	end := r.live(t)
	a, b := planned("a", gpu{i: 0}, threads(25)), planned("b", gpu{i: 1}, threads(25))
	must(t, r.do(t, a))
	r.away = true
	var notReady *mpssteps.NotReadyError
	if err := r.do(t, b); !errors.As(err, &notReady) || !errors.Is(err, errAway) {
		t.Errorf("error %v", err)
	}
	if err := r.undo(t, a); !errors.Is(err, errAway) {
		t.Errorf("error %v", err)
	}
	if r.modes["GPU-0"] != exclusive {
		t.Errorf("mode %s while the daemon may live", r.modes["GPU-0"])
	}
	spec := r.layout.Daemon("gpu-0000-01-00-0").Spec()
	must(t, os.MkdirAll(string(r.layout.Daemon("gpu-0000-01-00-0")), 0o755))
	must(t, os.WriteFile(spec, []byte("{}"), 0o600))
	end()
	must(t, r.undo(t, a))
	must(t, r.undo(t, b))
	if r.modes["GPU-0"] != byDefault || r.modes["GPU-1"] != byDefault {
		t.Errorf("modes %v", r.modes)
	}
	if _, err := os.Stat(spec); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a supervisor to come would start the daemon: %v", err)
	}
}

// A file that a crash of the machine cut off is no reason to fail.
func TestDamagedLedger(t *testing.T) {
	r := newRig(t)
	r.live(t)
	a := planned("a", gpu{i: 0}, threads(25))
	must(t, r.do(t, a))
	must(t, os.WriteFile(r.layout.Devices()+"/gpu-0000-01-00-0.json", []byte("{"), 0o600))
	must(t, r.do(t, a))
	must(t, os.WriteFile(r.layout.Devices()+"/gpu-0000-01-00-0.json", nil, 0o600))
	must(t, r.undo(t, a))
	if r.modes["GPU-0"] != byDefault || len(r.running) != 0 {
		t.Errorf("mode %s, daemons %v", r.modes["GPU-0"], r.running)
	}
}

// What a lost record left is found and undone; what a claim has is not.
func TestOwner(t *testing.T) {
	r := newRig(t)
	r.live(t)
	a, b := planned("a", gpu{i: 0}, threads(25)), planned("b", gpu{i: 1}, threads(25))
	must(t, r.do(t, a))
	must(t, r.do(t, b))
	o := mpssteps.Owner{Step: r.step()}
	things, err := o.Things(t.Context())
	must(t, err)
	if len(things) != 2 || things[0].ID != "gpu-0000-01-00-0" || things[0].GPU != address(0) {
		t.Fatalf("things %+v", things)
	}
	record := &journal.Record{Devices: []journal.Device{{Name: "gpu-0000-02-00-0"}}}
	if o.Accounts(record, things[0]) || !o.Accounts(record, things[1]) {
		t.Error("the record accounts for another device")
	}
	if err := o.Remove(t.Context(), things[0]); !errors.Is(err, reconcile.ErrLater) {
		t.Errorf("with a record: %v", err)
	}
	delete(r.records, "uid-a")
	must(t, o.Remove(t.Context(), things[0]))
	must(t, o.Remove(t.Context(), things[0]))
	if r.modes["GPU-0"] != byDefault || r.modes["GPU-1"] != exclusive || len(r.running) != 1 {
		t.Errorf("modes %v, daemons %v", r.modes, r.running)
	}
}

// A pod ends without a GPU driver, and the mode is put back when there is one.
func TestWithoutADriver(t *testing.T) {
	r := newRig(t)
	r.live(t)
	a := planned("a", gpu{i: 0}, threads(25))
	must(t, r.do(t, a))
	r.gone = true
	must(t, r.undo(t, a))
	if len(r.running) != 0 {
		t.Errorf("daemons %v", r.running)
	}
	o := mpssteps.Owner{Step: r.step()}
	things, err := o.Things(t.Context())
	must(t, err)
	if len(things) != 1 {
		t.Fatalf("things %+v", things)
	}
	if err := o.Remove(t.Context(), things[0]); !errors.Is(err, reconcile.ErrLater) {
		t.Errorf("without a driver: %v", err)
	}
	r.gone = false
	must(t, o.Remove(t.Context(), things[0]))
	if r.modes["GPU-0"] != byDefault {
		t.Errorf("mode %s", r.modes["GPU-0"])
	}
}

func TestDamagedParameters(t *testing.T) {
	r := newRig(t)
	for _, raw := range []string{`{`, `{"device":"../x"}`, `[]`} {
		if _, err := r.step().Do(t.Context(), []byte(raw)); err == nil {
			t.Errorf("%s was done", raw)
		}
		if err := r.step().Undo(t.Context(), []byte(raw), nil); err == nil {
			t.Errorf("%s was undone", raw)
		}
	}
}

// Whole GPUs under one configuration have one daemon, with the limit of each.
func TestGroups(t *testing.T) {
	r := newRig(t)
	r.live(t)
	want := claims.MPS{
		PinnedMemoryBytes: 2 << 30, Group: []device.Identity{gpu{i: 0}.Identity(), gpu{i: 1}.Identity()},
		GroupMemoryBytes: []int64{1 << 30, 2 << 30},
	}
	a, b := planned("a", gpu{i: 0}, want), planned("a", gpu{i: 1}, want)
	must(t, r.do(t, a))
	must(t, r.do(t, b))
	spec := mps.Spec{Devices: []mps.Device{{UUID: "GPU-0", PinnedMemoryMiB: 1024}, {UUID: "GPU-1", PinnedMemoryMiB: 2048}}}
	if diff := cmp.Diff(map[string]mps.Spec{"gpu-0000-01-00-0": spec}, r.running, cmp.Comparer(mps.Spec.Equal)); diff != "" {
		t.Error(diff)
	}
	if r.modes["GPU-0"] != exclusive || r.modes["GPU-1"] != exclusive {
		t.Errorf("modes %v", r.modes)
	}
	edits, err := mpssteps.Handler{Layout: r.layout}.Edits(b, r.steps(t, b))
	if err != nil || edits.Mounts[0].HostPath != r.layout.Daemon("gpu-0000-01-00-0").Pipe() {
		t.Errorf("mounts %+v, %v", edits.Mounts, err)
	}
	if err := r.do(t, planned("c", gpu{i: 1}, claims.MPS{})); !strings.Contains(fmt.Sprint(err), "team/a") {
		t.Errorf("a member for another: %v", err)
	}
	must(t, r.undo(t, b))
	must(t, r.undo(t, a))
	if len(r.running) != 0 || r.modes["GPU-0"] != byDefault || r.modes["GPU-1"] != byDefault {
		t.Errorf("daemons %v, modes %v", r.running, r.modes)
	}
}

// Containers find the daemon; those of devices that are not shared get nothing.
func TestEdits(t *testing.T) {
	r := newRig(t)
	a := planned("a", gpu{i: 0}, threads(25))
	h := mpssteps.Handler{Layout: r.layout}
	edits, err := h.Edits(a, r.steps(t, a))
	must(t, err)
	if !slices.Equal(edits.Env, []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"}) || len(edits.Mounts) != 2 {
		t.Errorf("edits %+v", edits)
	}
	if m := edits.Mounts[1]; m.ContainerPath != "/dev/shm" || m.HostPath != r.layout.Daemon("gpu-0000-01-00-0").Shm() {
		t.Errorf("mount %+v", m)
	}
	a.Settings.MPS = nil
	if steps, err := h.Steps(a); steps != nil || err != nil {
		t.Errorf("steps %v, %v", steps, err)
	}
	if edits, err := h.Edits(a, nil); len(edits.Env)+len(edits.Mounts) > 0 || err != nil {
		t.Errorf("edits %+v, %v", edits, err)
	}
}

// Claims come and go in any order, with crashes in the middle: a device has the daemon that its
// users want and is exclusive while it has users, and is as it was without.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		r.live(t)
		users := map[int]map[int]int{0: {}, 1: {}} // setting by claim, by GPU
		of := func(i, claim, setting int) claims.Device {
			return share(planned(fmt.Sprintf("c%d-%d", i, claim), gpu{i: i}, threads(setting)), claim)
		}
		check := func() {
			for i, claims := range users {
				spec, running := r.running[gpu{i: i}.Name()]
				if running != (len(claims) > 0) || (r.modes[id(i).UUID] == exclusive) != running {
					rt.Fatalf("GPU %d has %d users, mode %s, daemon %t", i, len(claims), r.modes[id(i).UUID], running)
				}
				for claim, setting := range claims {
					if *spec.ActiveThreadPercentage != setting {
						rt.Fatalf("claim %d wants %d%%, the daemon has %d%%", claim, setting, *spec.ActiveThreadPercentage)
					}
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"prepare": func(rt *rapid.T) {
				i, claim := rapid.IntRange(0, 1).Draw(rt, "gpu"), rapid.IntRange(0, 3).Draw(rt, "claim")
				setting := rapid.SampledFrom([]int{25, 50}).Draw(rt, "setting")
				if had, ok := users[i][claim]; ok {
					setting = had // again, after a crash
				}
				d := of(i, claim, setting)
				err := r.do(t, d)
				fits := true
				for _, other := range users[i] {
					fits = fits && other == setting
				}
				if (err == nil) != fits {
					rt.Fatalf("claim %d with %d%% beside %v: %v", claim, setting, users[i], err)
				}
				if err != nil {
					must(t, r.undo(t, d))
					return
				}
				users[i][claim] = setting
			},
			"unprepare": func(rt *rapid.T) {
				i, claim := rapid.IntRange(0, 1).Draw(rt, "gpu"), rapid.IntRange(0, 3).Draw(rt, "claim")
				must(t, r.undo(t, of(i, claim, max(users[i][claim], 25))))
				delete(users[i], claim)
			},
			"crash in a prepare": func(rt *rapid.T) {
				// The supervisor is away, so that only half of the step is done; recovery undoes it.
				i := rapid.IntRange(0, 1).Draw(rt, "gpu")
				d := of(i, 9, 25)
				r.away = true
				if err := r.do(t, d); err == nil {
					rt.Fatal("done without a supervisor")
				}
				r.away = false
				must(t, r.undo(t, d))
			},
			"reboot": func(*rapid.T) {
				clear(r.modes)
				clear(r.running)
				for i, claims := range users {
					for claim, setting := range claims {
						must(t, r.do(t, of(i, claim, setting)))
					}
				}
			},
		})
	})
}

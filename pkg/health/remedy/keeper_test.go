package remedy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ward is a node with one GPU that needs a reset, and nothing against it.
type ward struct {
	Keeper
	t        *testing.T
	patient  Patient
	records  []*journal.Record
	mig      inventory.MIG
	users    []inventory.Process
	fail     map[string]error
	unread   bool
	withheld map[string]string
	// did is what happened, in order; noted the note as it was when the tool ran.
	did   []string
	noted Note
}

func newWard(t *testing.T) *ward {
	w := &ward{t: t, fail: map[string]error{}, patient: Patient{
		GPU:      inventory.GPU{PCI: pci.Address{Bus: 0x1a}, UUID: "GPU-1", MIG: inventory.MIG{Capable: true}},
		Severity: health.Avoid, Answers: true, Action: health.Action{Supported: true, Read: true, Value: 1},
	}}
	w.Keeper = Keeper{Config{
		Patients: func() []Patient { return []Patient{w.patient} },
		OnGPU: func(ctx context.Context, _ pci.Address, work func(context.Context, []*journal.Record) error) error {
			w.did = append(w.did, "lock")
			if err := w.fail["lock"]; err != nil || w.unread {
				return err
			}
			defer func() { w.did = append(w.did, "unlock") }()
			return work(ctx, w.records)
		},
		Hardware: w, Tool: w, Reporter: w, Notes: Notes{Dir: filepath.Join(t.TempDir(), "resets"), BootID: "boot"},
		Count: func(done bool) {
			if done {
				w.did = append(w.did, "counted")
			}
		},
	}}
	return w
}

func (w *ward) MIG(context.Context, inventory.GPUID) (inventory.MIG, error) {
	return w.mig, w.fail["mig"]
}

func (w *ward) Processes(context.Context, inventory.GPUID) ([]inventory.Process, error) {
	return w.users, w.fail["processes"]
}

func (w *ward) Apart(ctx context.Context, work func(context.Context) error) error {
	if err := w.fail["apart"]; err != nil {
		return err
	}
	w.did = append(w.did, "apart")
	return work(ctx)
}

func (w *ward) Run(ctx context.Context, _ time.Duration, args ...string) error {
	if ctx.Err() != nil {
		w.t.Error("a reset can be cut short")
	}
	w.did = append(w.did, strings.Join(args, " "))
	w.noted, _ = w.Notes.load(w.patient.GPU.PCI, w.patient.GPU.UUID)
	return w.fail["tool"]
}

func (w *ward) GPUReset(_ context.Context, _ pci.Address, _ int, err error) {
	if err != nil {
		w.did = append(w.did, "failed")
		return
	}
	w.did = append(w.did, "told")
}

func (w *ward) ResetWithheld(_ context.Context, why map[string]string) { w.withheld = why }

// look has the keeper look once and gives how often the GPU was reset, and why not.
func (w *ward) look() (resets int, why string) {
	w.did = nil
	w.Look(w.t.Context())
	for _, d := range w.did {
		if strings.HasPrefix(d, "--gpu-reset") {
			resets++
		}
	}
	return resets, w.withheld[w.patient.GPU.PCI.String()]
}

// A reset is done under the lock, while nothing of ours has the GPU open, and is noted before.
func TestReset(t *testing.T) {
	w := newWard(t)
	if n, why := w.look(); n != 1 || why != "" {
		t.Fatalf("%d resets: %s", n, why)
	}
	if diff := cmp.Diff([]string{"lock", "apart", "--gpu-reset -i GPU-1", "counted", "told", "unlock"}, w.did); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w.noted.Attempts != 1 || w.noted.Begun.IsZero() || !w.noted.Ended.IsZero() {
		t.Errorf("noted before the reset: %+v", w.noted)
	}
	after, err := w.Notes.load(w.patient.GPU.PCI, "GPU-1")
	if err != nil || after.Ended.IsZero() || after.Failed != "" {
		t.Errorf("noted after it: %+v, %v", after, err)
	}
}

// A board that cannot be cut is not asked whether it is.
func TestWithoutMIG(t *testing.T) {
	w := newWard(t)
	w.patient.GPU.MIG.Capable = false
	w.fail["mig"] = inventory.ErrNotSupported
	if n, why := w.look(); n != 1 {
		t.Error(why)
	}
}

// Everything that forbids a reset does, and is told.
func TestForbidden(t *testing.T) {
	peer := pci.Address{Bus: 0x2a}
	for name, test := range map[string]struct {
		change func(*ward)
		words  string
	}{
		"a claim":        {func(w *ward) { w.records = claimOf(w.patient.GPU.PCI, false) }, "claim team/train has it"},
		"admin access":   {func(w *ward) { w.records = claimOf(w.patient.GPU.PCI, true) }, "claim team/train has it"},
		"a process":      {func(w *ward) { w.users = []inventory.Process{{PID: 77}} }, "process 77 uses it"},
		"partitions":     {func(w *ward) { w.mig.Instances = make([]inventory.MIGInstance, 2) }, "cut into 2 partitions"},
		"the MIG mode":   {func(w *ward) { w.patient.GPU.MIG.Enabled = true }, "in MIG mode"},
		"a pending mode": {func(w *ward) { w.mig.PendingEnabled = true }, "in MIG mode"},
		"a bridge": {func(w *ward) {
			w.patient.GPU.NVLink.Links = []inventory.Link{{Remote: inventory.RemoteGPU, Peer: peer}}
		}, "join it to GPU 0000:2a:00.0"},
		"switches without a fabric": {func(w *ward) {
			w.patient.GPU.NVLink.Links = []inventory.Link{{Active: true, Remote: inventory.RemoteSwitch}}
		}, "reset together"},
		"a fabric that is late":  {onFabric(inventory.Fabric{State: "in-progress"}), "is in-progress"},
		"a fabric of many nodes": {onFabric(inventory.Fabric{State: inventory.FabricCompleted, ClusterUUID: "x"}), "joins several nodes"},
		"unknown links":          {func(w *ward) { w.patient.GPU.NVLink.Links = []inventory.Link{{}, {Active: true}} }, "is not known"},
		"no answer":              {func(w *ward) { w.patient.Answers = false }, "does not answer"},
		"unreadable records":     {func(w *ward) { w.unread = true }, "records of claims cannot be read"},
		"a lock":                 {func(w *ward) { w.fail["lock"] = errors.New("locked") }, "locked"},
		"MIG unknown":            {func(w *ward) { w.fail["mig"] = errors.New("mute") }, "mute"},
		"processes unknown":      {func(w *ward) { w.fail["processes"] = errors.New("mute") }, "mute"},
		"the session in use":     {func(w *ward) { w.fail["apart"] = errors.New("busy") }, "busy"},
		"a note that is damaged": {func(w *ward) { damage(w) }, "note of resets"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			test.change(w)
			if n, why := w.look(); n != 0 || !strings.Contains(why, test.words) {
				t.Errorf("%d resets: %q, want %q", n, why, test.words)
			}
		})
	}
}

func onFabric(f inventory.Fabric) func(*ward) {
	return func(w *ward) {
		w.patient.GPU.NVLink.Links = []inventory.Link{{Active: true, Remote: inventory.RemoteSwitch}}
		w.patient.GPU.Fabric = f
	}
}

func claimOf(at pci.Address, admin bool) []*journal.Record {
	return []*journal.Record{
		{Namespace: "team", Name: "other", Devices: []journal.Device{{PCI: pci.Address{Bus: 9}}}},
		{Namespace: "team", Name: "train", Devices: []journal.Device{{PCI: at, AdminAccess: admin}}},
	}
}

func damage(w *ward) {
	path := w.Notes.path(w.patient.GPU.PCI)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte("{"), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// GPUs that are well, or need something else than a reset, are left alone.
func TestNotWanted(t *testing.T) {
	for name, change := range map[string]func(*Patient){
		"well":              func(p *Patient) { p.Severity, p.Action.Value = health.Ignore, health.ActionNone },
		"a note":            func(p *Patient) { p.Severity = health.Note },
		"a reboot":          func(p *Patient) { p.Action.Value = 2 },
		"not supported":     func(p *Patient) { p.Action = health.Action{} },
		"could not be read": func(p *Patient) { p.Action.Read = false },
	} {
		w := newWard(t)
		change(&w.patient)
		if n, why := w.look(); n != 0 || why != "" || len(w.did) > 0 {
			t.Errorf("%s: %d resets, %q, %v", name, n, why, w.did)
		}
	}
	w := newWard(t)
	damage(w)
	w.patient.Severity, w.patient.Action.Value = health.Ignore, health.ActionNone
	if n, why := w.look(); n != 0 || why != "" {
		t.Errorf("well, with a note that is damaged: %d resets, %q", n, why)
	}
	if n := mustLoad(t, w.Notes, w.patient.GPU.PCI, "GPU-1"); n.Attempts != 0 {
		t.Errorf("its note: %+v", n)
	}
	w = newWard(t)
	w.patient.Action.Value = 4
	if n, _ := w.look(); n != 1 {
		t.Error("drain-and-reset is a reset, too")
	}
	w = newWard(t)
	onFabric(inventory.Fabric{State: inventory.FabricCompleted, Healthy: true})(w)
	if n, why := w.look(); n != 1 {
		t.Errorf("on a fabric that registers GPUs: %s", why)
	}
}

// After three attempts in vain, ever more rarely, the GPU is left to people; an hour of health makes
// it forgotten, and so does a reboot and another board.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t)
		w.fail["tool"] = errors.New("in use by another client")
		var at []time.Duration
		begin := time.Now()
		why := ""
		for range 400 {
			var n int
			if n, why = w.look(); n > 0 {
				at = append(at, time.Since(begin))
				if !slices.Contains(w.did, "failed") {
					t.Errorf("nobody was told: %v", w.did)
				}
			}
			time.Sleep(10 * time.Second)
		}
		if diff := cmp.Diff([]time.Duration{0, time.Minute, 3 * time.Minute}, at); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if !strings.Contains(why, "3 resets failed") || !strings.Contains(why, "another client") {
			t.Errorf("withheld: %q", why)
		}
		rebooted := Notes{Dir: w.Notes.Dir, BootID: "another boot"}
		if due, why := mustLoad(t, rebooted, w.patient.GPU.PCI, "GPU-1").due(); why != "" || !due.IsZero() {
			t.Errorf("after a reboot: %v %s", due, why)
		}
		if n := mustLoad(t, w.Notes, w.patient.GPU.PCI, "GPU-2"); n.Attempts != 0 {
			t.Errorf("another board: %+v", n)
		}
		sick := w.patient
		w.patient.Severity, w.patient.Action.Value = health.Ignore, health.ActionNone
		w.look()
		w.patient, w.fail = sick, map[string]error{}
		if n, why := w.look(); n != 1 || why != "" {
			t.Errorf("after more than an hour: %d resets, %s", n, why)
		}
		time.Sleep(time.Hour)
		for range 2 {
			w.look()
			time.Sleep(time.Hour)
		}
		if _, why := w.look(); !strings.Contains(why, "3 resets have not helped") {
			t.Errorf("%q", why)
		}
	})
}

func mustLoad(t *testing.T, n Notes, at pci.Address, uuid string) Note {
	t.Helper()
	note, err := n.load(at, uuid)
	if err != nil {
		t.Fatal(err)
	}
	return note
}

// A process that is killed in a reset leaves a note that counts.
func TestKilledInAReset(t *testing.T) {
	w := newWard(t)
	if err := w.Notes.save(w.patient.GPU.PCI, Note{UUID: "GPU-1", Attempts: 2, Begun: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if n, _ := w.look(); n != 1 || w.noted.Attempts != 3 {
		t.Errorf("%d resets, %+v", n, w.noted)
	}
	if n, why := w.look(); n != 0 || why == "" {
		t.Errorf("%d resets more, %q", n, why)
	}
}

// What cannot be noted is not done.
func TestNoNoteNoReset(t *testing.T) {
	w := newWard(t)
	if err := os.WriteFile(w.Notes.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, why := w.look(); n != 0 || why == "" {
		t.Errorf("%d resets, %q", n, why)
	}
}

func TestRunLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t)
		w.users = []inventory.Process{{PID: 1}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Keeper.Run(ctx); close(done) }()
		synctest.Wait()
		time.Sleep(5 * interval)
		cancel()
		<-done
		if n := strings.Count(strings.Join(w.did, " "), "unlock"); n < 4 {
			t.Errorf("looked %d times", n)
		}
	})
	var none *Keeper
	none.Run(t.Context())
}

package monitor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ward stands for the hardware and for all that a monitor speaks to.
type ward struct {
	mu     sync.Mutex
	events chan vitals.Event
	recall chan error
	vitals map[pci.Address]health.Vitals
	// asked are the links of each reading.
	asked    map[pci.Address][]int
	deaf     map[inventory.GPUID]error
	watched  [][]inventory.GPUID
	mig      inventory.MIG
	migErr   error
	held     map[pci.Address]bool
	changed  []time.Time
	looks    int
	read     map[pci.Address]int
	noticed  []int
	judged   []string
	watching error
}

func newWard() *ward {
	return &ward{events: make(chan vitals.Event), recall: make(chan error), vitals: map[pci.Address]health.Vitals{}, asked: map[pci.Address][]int{}, held: map[pci.Address]bool{}, read: map[pci.Address]int{}}
}

func (w *ward) Watch(ctx context.Context, gpus []inventory.GPUID, listening func(map[inventory.GPUID]error), tell func(vitals.Event)) error {
	w.mu.Lock()
	w.watched = append(w.watched, gpus)
	deaf, failing := w.deaf, w.watching
	w.mu.Unlock()
	if failing != nil {
		return failing
	}
	listening(deaf)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.recall:
			return err
		case e := <-w.events:
			tell(e)
		}
	}
}

func (w *ward) Read(_ context.Context, gpu inventory.GPUID, links int) health.Vitals {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[gpu.PCI] = append(w.asked[gpu.PCI], links)
	w.read[gpu.PCI]++
	v, ok := w.vitals[gpu.PCI]
	if !ok {
		v = well()
	}
	return v
}

func (w *ward) MIG(context.Context, inventory.GPUID) (inventory.MIG, error) { return w.mig, w.migErr }

func (w *ward) Held(at pci.Address) bool { return w.held[at] }

func (w *ward) Judged(_ context.Context, at pci.Address, _, after health.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judged = append(w.judged, at.String()+" "+after.Reason())
}

func (w *ward) Noticed(_ context.Context, _ pci.Address, xid int, _ health.Rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noticed = append(w.noticed, xid)
}

// take gives the links of each reading so far.
func (w *ward) take(at pci.Address) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[at]
}

func (w *ward) set(at pci.Address, v health.Vitals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vitals[at] = v
}

func unsupported[T any]() inventory.Fact[T] { return inventory.Unknown[T](inventory.ErrNotSupported) }

func well() health.Vitals {
	return health.Vitals{
		Recovery: inventory.Known(0), RemapPending: inventory.Known(false), RemapFailed: inventory.Known(false),
		RetirementPending: unsupported[bool](), LinkErrors: unsupported[uint64](),
	}
}

func needing(action int) health.Vitals {
	v := well()
	v.Recovery = inventory.Known(action)
	return v
}

const interval = 5 * time.Second

// monitorOf makes one that keeps its state in dir.
func monitorOf(t testing.TB, w *ward, dir, boot string) *monitor.Monitor {
	t.Helper()
	table, err := health.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return monitor.New(monitor.Config{
		Rules: health.Rules{Table: table, Timing: health.DefaultTiming()}, Source: w, Partitions: w, Holders: w, Reporter: w,
		Store: monitor.Store{Path: filepath.Join(dir, "state", "health.json"), BootID: boot}, Interval: interval,
		Changed: func(context.Context) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed = append(w.changed, time.Now())
		},
		Look: func(context.Context) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.looks++
		},
	})
}

// running leads and runs a monitor until the test's function ends.
func running(t testing.TB, m *monitor.Monitor, s inventory.Snapshot) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m.Scanned(ctx, s)
	m.Lead(ctx)
	done := make(chan struct{})
	go func() {
		m.Run(ctx)
		close(done)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
	}
}

func idOf(g inventory.GPU) inventory.GPUID { return inventory.GPUID{PCI: g.PCI, UUID: g.UUID} }

func TestErrorsAndTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		at := s.GPUs[1].PCI
		severity := func() health.Severity { return m.Verdict(at, nil).Severity() }
		w.set(at, needing(1))
		changes := m.Changes()
		begin := time.Now()
		w.events <- vitals.Event{GPU: idOf(s.GPUs[1]), XID: 79, Instance: -1}
		<-changes
		synctest.Wait()
		if severity() != health.Evict || time.Since(begin) != 0 {
			t.Errorf("%v after %v", severity(), time.Since(begin))
		}
		if got := m.Verdict(s.GPUs[0].PCI, nil); len(got.Faults) > 0 {
			t.Errorf("another GPU: %v", got.Faults)
		}
		time.Sleep(time.Minute)
		w.set(at, well())
		time.Sleep(interval + health.DefaultTiming().Hold + time.Second)
		synctest.Wait()
		if severity() != health.Ignore {
			t.Errorf("left: %v", m.Verdict(at, nil).Faults)
		}
		if diff := cmp.Diff([]int{79}, w.noticed); diff != "" {
			t.Error(diff)
		}
	})
}

// A burst is told at its begin and at its end.
func TestABurstIsToldTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		defer running(t, monitorOf(t, w, t.TempDir(), "boot"), s)()
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		w.changed = nil
		w.mu.Unlock()
		for i := range 50 {
			w.events <- vitals.Event{GPU: idOf(s.GPUs[i%4]), XID: 13 + i%2*18, Instance: -1}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(w.changed) != 2 {
			t.Errorf("told at %v", w.changed)
		}
	})
}

// A driver that says that some GPU is lost has each asked: those that fail are ill, and no others.
func TestOneOfThemIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		lost, hung := s.GPUs[2].PCI, s.GPUs[3].PCI
		w.set(lost, health.Vitals{Err: inventory.ErrLost})
		w.set(hung, health.Vitals{Err: inventory.ErrHung})
		w.events <- vitals.Event{Instance: -1}
		synctest.Wait()
		for _, g := range s.GPUs {
			want := map[pci.Address]string{lost: "GpuLost", hung: "Unresponsive"}[g.PCI]
			if got := m.Verdict(g.PCI, nil).Reason(); got != want {
				t.Errorf("%s is %q, want %q", g.PCI, got, want)
			}
		}
		if w.looks == 0 {
			t.Error("nobody looked at the hardware")
		}

		// The scan does not have it any more; it is kept, without its links, while the driver is there.
		after := inventorytest.Lose(s, lost)
		after.Unusable[0].Cause = inventory.CauseLost
		m.Scanned(t.Context(), after)
		kept := m.Retained(after)
		if len(kept.GPUs) != 4 || kept.GPUs[2].PCI != lost || len(kept.GPUs[2].NVLink.Links) > 0 {
			t.Errorf("kept: %+v", kept.GPUs)
		}
		if got := m.Retained(inventory.Snapshot{}); len(got.GPUs) > 0 {
			t.Errorf("without a driver: %+v", got)
		}
	})
}

// A GPU that is left to others is neither watched nor read nor published, whatever an earlier run
// knew of it and although a claim has it.
func TestExcludedGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, dir := newWard(), inventorytest.T4(), t.TempDir()
		at := s.GPUs[1].PCI
		w.held[at] = true
		w.set(at, needing(1))
		running(t, monitorOf(t, w, dir, "boot"), s)()

		for _, driver := range []bool{true, false} {
			later := newWard()
			later.held[at] = true
			m := monitorOf(t, later, dir, "boot")
			m.Selection = selection.Selection{Exclude: []selection.Entry{{UUIDs: []string{s.GPUs[1].UUID}}}}
			now := inventorytest.Exclude(s, at)
			// A driver that does not answer does not tell what is excluded by more than an address.
			now.Driver.Present = driver
			stop := running(t, m, now)
			time.Sleep(3 * interval)
			synctest.Wait()
			for _, gpus := range later.watched {
				if slices.ContainsFunc(gpus, func(id inventory.GPUID) bool { return id.PCI == at }) {
					t.Errorf("watched are %v", gpus)
				}
			}
			if later.read[at] > 0 || driver == (later.read[s.GPUs[0].PCI] == 0) {
				t.Errorf("read are %v", later.read)
			}
			if kept := m.Retained(inventorytest.Exclude(s, at)); len(kept.GPUs) != 3 || len(m.Verdict(at, nil).Faults) > 0 {
				t.Errorf("kept are %v, and it has %v", kept.GPUs, m.Verdict(at, nil))
			}
			stop()
		}
	})
}

// One that is left to others while it is watched is forgotten at the next look.
func TestExclusionOfWhatIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		at := s.GPUs[1].PCI
		w.held[at] = true
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		m.Scanned(t.Context(), inventorytest.Exclude(s, at))
		if n := len(m.Patients()); n != 3 {
			t.Errorf("%d patients", n)
		}
	})
}

// A GPU that left the machine is forgotten, unless a claim has it.
func TestGPUsThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		m := monitorOf(t, w, t.TempDir(), "boot")
		w.held[s.GPUs[1].PCI] = true
		defer running(t, m, s)()
		fewer := s
		fewer.GPUs = slices.Clone(s.GPUs[2:])
		m.Scanned(t.Context(), fewer)
		var names []string
		for _, p := range m.Patients() {
			names = append(names, p.GPU.PCI.String()+p.Verdict.Reason())
		}
		want := []string{s.GPUs[1].PCI.String() + "GpuLost", s.GPUs[2].PCI.String(), s.GPUs[3].PCI.String()}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
		synctest.Wait()
		if n := len(w.watched[len(w.watched)-1]); n != 3 {
			t.Errorf("%d GPUs are watched", n)
		}
		// Another board at the same place has nothing of the old one's faults.
		swapped := s
		swapped.GPUs = slices.Clone(s.GPUs)
		swapped.GPUs[1].UUID = "GPU-another"
		m.Scanned(t.Context(), swapped)
		if got := m.Verdict(s.GPUs[1].PCI, nil); len(got.Faults) > 0 {
			t.Errorf("the new board has %v", got.Faults)
		}
	})
}

// What is known survives a restart, and counts before anything is published; after a reboot it
// counts until it was looked at.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, dir := newWard(), inventorytest.T4(), t.TempDir()
		first := monitorOf(t, w, dir, "boot")
		end := running(t, first, s)
		at := s.GPUs[0].PCI
		w.set(at, needing(2))
		w.events <- vitals.Event{GPU: idOf(s.GPUs[0]), XID: 79, Instance: -1}
		time.Sleep(2 * time.Second)
		end()
		if first.Well() {
			t.Error("an ill GPU does not count")
		}

		second := monitorOf(t, w, dir, "boot")
		if second.Verdict(at, nil).Severity() != health.Ignore || second.Leads() {
			t.Error("an instance that does not lead has an opinion")
		}
		if second.Well() {
			t.Error("an instance that loaded nothing takes all for well")
		}
		lost := inventorytest.Lose(s, at)
		lost.Unusable[0].Cause = inventory.CauseLost
		second.Scanned(t.Context(), lost)
		second.Lead(t.Context())
		if got := second.Retained(lost); second.Verdict(at, nil).Severity() != health.Evict || len(got.GPUs) != 4 {
			t.Errorf("after a restart: %v, %d GPUs", second.Verdict(at, nil).Faults, len(got.GPUs))
		}

		w.set(at, well())
		third := monitorOf(t, w, dir, "another boot")
		third.Scanned(t.Context(), s)
		third.Lead(t.Context())
		if third.Verdict(at, nil).Severity() != health.Evict {
			t.Error("a reboot alone clears it")
		}
		defer running(t, third, s)()
		time.Sleep(2 * interval)
		synctest.Wait()
		if third.Verdict(at, nil).Severity() != health.Ignore || !third.Well() {
			t.Errorf("after it was looked at: %v", third.Verdict(at, nil).Faults)
		}
	})
}

func TestAStateThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state", "health.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (monitor.Store{Path: path}).Load(); err == nil {
		t.Error("half a file was read")
	}
	m := monitorOf(t, newWard(), dir, "boot")
	m.Lead(t.Context())
	if !m.Leads() || len(m.Patients()) != 0 {
		t.Error("it does not start anew")
	}
}

// A driver that cannot be asked to report errors leaves the GPUs unmonitored, and says so; boards
// that report none are read, which is all that can be done.
func TestUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.T4()
		w.deaf = map[inventory.GPUID]error{idOf(s.GPUs[0]): errors.New("no"), idOf(s.GPUs[1]): inventory.ErrNotSupported}
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		status := func() (out []health.Status) {
			for _, g := range s.GPUs {
				out = append(out, m.Verdict(g.PCI, nil).Status())
			}
			return out
		}
		if diff := cmp.Diff([]health.Status{health.Unknown, health.Healthy, health.Healthy, health.Healthy}, status()); diff != "" {
			t.Error(diff)
		}
		w.mu.Lock()
		w.watching, w.deaf = errors.New("the driver is gone"), nil
		w.mu.Unlock()
		w.recall <- vitals.ErrRecalled
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]health.Status{health.Unknown, health.Unknown, health.Unknown, health.Unknown}, status()); diff != "" {
			t.Error(diff)
		}
		w.mu.Lock()
		w.watching = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]health.Status{health.Healthy, health.Healthy, health.Healthy, health.Healthy}, status()); diff != "" {
			t.Error(diff)
		}
	})
}

// The last reading stays, with its time, while a GPU cannot be read, and goes with the board.
func TestReadingsHaveATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.HGXH100()
		at := s.GPUs[0].PCI
		v := well()
		v.CelsiusDegrees = inventory.Known(50)
		w.set(at, v)
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		first := m.Patients()[0]
		if first.ReadAt.IsZero() || first.Vitals.CelsiusDegrees.Value != 50 || first.Links != len(s.GPUs[0].NVLink.Links) {
			t.Fatalf("read at %v: %v, %d links", first.ReadAt, first.Vitals.CelsiusDegrees, first.Links)
		}
		w.set(at, health.Vitals{Err: inventory.ErrHung})
		time.Sleep(3 * interval)
		synctest.Wait()
		if now := m.Patients()[0]; !now.ReadAt.Equal(first.ReadAt) || now.Vitals.CelsiusDegrees.Value != 50 {
			t.Errorf("while it hangs: read at %v, not %v: %v", now.ReadAt, first.ReadAt, now.Vitals.CelsiusDegrees)
		}
		w.set(at, v)
		time.Sleep(interval)
		synctest.Wait()
		if now := m.Patients()[0]; !now.ReadAt.After(first.ReadAt) {
			t.Errorf("it answers again, and was last read at %v", now.ReadAt)
		}
		w.set(at, health.Vitals{Err: inventory.ErrHung})
		swapped := s
		swapped.GPUs = slices.Clone(s.GPUs)
		swapped.GPUs[0].UUID = "GPU-another"
		m.Scanned(t.Context(), swapped)
		if now := m.Patients()[0]; !now.ReadAt.IsZero() {
			t.Errorf("another board has a reading of the old one, of %v", now.ReadAt)
		}
	})
}

// The many counters of links are read seldom, and what they said counts meanwhile.
func TestLinkErrorsAreReadSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWard(), inventorytest.HGXH100()
		at, up := s.GPUs[0].PCI, len(s.GPUs[0].NVLink.Links)
		count := func(n uint64) {
			v := well()
			v.LinkErrors = inventory.Known(n)
			w.set(at, v)
		}
		count(10)
		m := monitorOf(t, w, t.TempDir(), "boot")
		defer running(t, m, s)()
		const many = 1_000_000
		count(many)
		reason := func() string { return m.Verdict(at, nil).Reason() }
		for passed := interval; passed < 25*time.Second; passed += interval {
			time.Sleep(interval)
			synctest.Wait()
			if got := m.Patients()[0].Vitals.LinkErrors; got != inventory.Known(uint64(10)) || reason() != "" {
				t.Errorf("after %s: %v, %s", passed, got, reason())
			}
		}
		time.Sleep(interval)
		synctest.Wait()
		if got := m.Patients()[0].Vitals.LinkErrors; got != inventory.Known(uint64(many)) || reason() == "" {
			t.Errorf("when they are due: %v, %q", got, reason())
		}
		time.Sleep(interval)
		synctest.Wait()
		if reason() == "" {
			t.Error("a reading without the counters ends the fault")
		}
		if diff := cmp.Diff([]int{up, 0, up, 0}, slices.Compact(w.take(at))); diff != "" {
			t.Errorf("links that were asked for (-want +got):\n%s", diff)
		}
	})
}

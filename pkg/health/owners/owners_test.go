package owners_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/owners"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/report"
	"github.com/gpu-dra/driver/pkg/topology"
)

// node stands for the records and for who is told.
type node struct {
	records []*journal.Record
	err     error
	told    []string
	// away tells that pods cannot be asked for, asked how often that was tried.
	away  atomic.Bool
	asked int
	// hold, where there is one, keeps those who ask waiting.
	hold chan struct{}
}

func (n *node) pods(_ context.Context, claim claims.Ref) ([]report.Pod, error) {
	n.asked++
	if n.hold != nil {
		<-n.hold
	}
	if n.away.Load() {
		return nil, errors.New("the API server is away")
	}
	return []report.Pod{{Name: "pod-of-" + claim.Name}}, nil
}

func (n *node) List() ([]*journal.Record, []journal.Bad, error) { return n.records, nil, n.err }

func (n *node) DeviceSick(_ context.Context, claim claims.Ref, pods []report.Pod, device, message string) {
	for _, p := range pods {
		n.told = append(n.told, claim.Name+" "+p.Name+" "+device)
	}
	if message == "" {
		n.told = append(n.told, "without a message")
	}
}

func (n *node) take() []string {
	told := n.told
	n.told = nil
	return told
}

// ward is a node with a teller and what it judges by.
type ward struct {
	node
	teller   owners.Teller
	names    []string
	gpus     []inventory.GPU
	verdicts map[pci.Address]health.Verdict
}

func newWard() *ward {
	snapshot := inventorytest.T4()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	w := &ward{gpus: snapshot.GPUs, verdicts: map[pci.Address]health.Verdict{}}
	devices := map[string]device.Device{}
	for _, d := range device.FromSnapshot(snapshot, assignment) {
		devices[d.Name()] = d
		w.names = append(w.names, d.Name())
	}
	w.records = []*journal.Record{
		{Name: "one", UID: "1", Devices: []journal.Device{{Name: w.names[0]}, {Name: w.names[1]}}},
		{Name: "two", UID: "2", Devices: []journal.Device{{Name: w.names[2]}, {Name: "not-there"}}},
	}
	w.teller = owners.Teller{
		Records: w, Reporter: w, Devices: func() map[string]device.Device { return devices }, Pods: w.pods,
		Judge: func(at pci.Address, _ *health.Place) health.Verdict { return w.verdicts[at] },
	}
	return w
}

func (w *ward) ill(gpu int, code string, s health.Severity) {
	w.verdicts[w.gpus[gpu].PCI] = health.Verdict{Faults: []health.Fault{{Kind: health.XID, Code: code, Severity: s}}}
}

// expect waits until nothing moves, and checks what was told since the last time.
func (w *ward) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, w.take()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard()
		expect := func(what string, want ...string) {
			t.Helper()
			w.teller.Tell(t.Context())
			w.expect(t, what, want...)
		}
		expect("all is well")
		w.ill(1, "79", health.Evict)
		w.ill(2, "13", health.Note)
		w.ill(3, "79", health.Evict)
		expect("a device of one claim is ill, one of another has a note, one is nobody's", "one pod-of-one "+w.names[1])
		expect("nothing new")
		w.ill(1, "119", health.Evict)
		expect("another fault", "one pod-of-one "+w.names[1])
		delete(w.verdicts, w.gpus[1].PCI)
		expect("well again")
		w.ill(1, "119", health.Evict)
		expect("ill again", "one pod-of-one "+w.names[1])
		w.err = errors.New("no")
		w.ill(2, "79", health.Evict)
		expect("records that cannot be read")
		w.err = nil
		expect("readable again", "two pod-of-two "+w.names[2])
	})
}

// Pods that cannot be asked for are told once they can, though nothing else changes.
func TestPodsAreToldLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard()
		w.ill(1, "79", health.Evict)
		w.away.Store(true)
		w.teller.Tell(t.Context())
		w.expect(t, "while it is away")
		w.away.Store(false)
		time.Sleep(time.Minute)
		w.expect(t, "once it is there", "one pod-of-one "+w.names[1])
	})
}

// While the API server is slow, a burst waits as one wish, and holds up nobody.
func TestABurstIsOneWish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard()
		w.hold = make(chan struct{})
		w.away.Store(true)
		w.ill(1, "79", health.Evict)
		before := runtime.NumGoroutine()
		for range 100 {
			w.teller.Tell(t.Context())
			synctest.Wait()
		}
		if n := runtime.NumGoroutine() - before; n > 10 || w.asked != 1 {
			t.Errorf("%d goroutines more, asked %d times", n, w.asked)
		}
		close(w.hold)
		synctest.Wait()
		if w.asked != 2 {
			t.Errorf("asked %d times for the one that was under way and one wish", w.asked)
		}
	})
}

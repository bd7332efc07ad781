package owners_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/owners"
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

func TestTell(t *testing.T) {
	snapshot := inventorytest.T4()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	devices := map[string]device.Device{}
	var names []string
	for _, d := range device.FromSnapshot(snapshot, assignment) {
		devices[d.Name()] = d
		names = append(names, d.Name())
	}
	n := &node{records: []*journal.Record{
		{Name: "one", UID: "1", Devices: []journal.Device{{Name: names[0]}, {Name: names[1]}}},
		{Name: "two", UID: "2", Devices: []journal.Device{{Name: names[2]}, {Name: "not-there"}}},
	}}
	verdicts := map[pci.Address]health.Verdict{}
	teller := owners.Teller{
		Records: n, Reporter: n, Devices: func() map[string]device.Device { return devices },
		Judge: func(at pci.Address, _ *health.Place) health.Verdict { return verdicts[at] },
		Pods: func(_ context.Context, claim claims.Ref) []report.Pod {
			return []report.Pod{{Name: "pod-of-" + claim.Name}}
		},
	}
	ill := func(gpu int, code string, s health.Severity) {
		verdicts[snapshot.GPUs[gpu].PCI] = health.Verdict{Faults: []health.Fault{{Kind: health.XID, Code: code, Severity: s}}}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		teller.Tell(t.Context())
		if diff := cmp.Diff(want, n.take()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	expect("all is well")
	ill(1, "79", health.Evict)
	ill(2, "13", health.Note)
	ill(3, "79", health.Evict)
	expect("a device of one claim is ill, one of another has a note, one is nobody's", "one pod-of-one "+names[1])
	expect("nothing new")
	ill(1, "119", health.Evict)
	expect("another fault", "one pod-of-one "+names[1])
	delete(verdicts, snapshot.GPUs[1].PCI)
	expect("well again")
	ill(1, "119", health.Evict)
	expect("ill again", "one pod-of-one "+names[1])
	n.err = errors.New("no")
	ill(2, "79", health.Evict)
	expect("records that cannot be read")
	n.err = nil
	expect("readable again", "two pod-of-two "+names[2])
}

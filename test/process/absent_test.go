package process_test

import (
	"os"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// ofEveryKind runs a test for each kind of claim, on a node where one is prepared.
func ofEveryKind(t *testing.T, test func(m *matrix, claim kubelet.Claim)) {
	for _, k := range append([]kind{wholes(1, 2)}, kinds()...) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			m := newMatrix(t, k)
			m.start()
			claim := k.claim(m.bed, "claim")
			k.prepare(m, m.bed, claim)
			test(m, claim)
		})
	}
}

// Without a GPU driver a claim of any kind is unprepared, so that nobody waits for anybody who changes
// the driver. What could not be undone then is when it is there again.
func TestUnprepareWithoutADriver(t *testing.T) {
	ofEveryKind(t, func(m *matrix, claim kubelet.Claim) {
		removeDriver(m.T, m.bed)
		m.plugin.Kill()
		m.start()
		unprepare(m, m.bed, claim)
		cleaned(m, m.bed)
		must(m, m.bed.Node.RestoreDriver())
		must(m, m.bed.Node.ClearFaults())
		m.plugin.Kill()
		m.start()
		m.settle(m.other(m.bed))
	})
}

// With the plugin and the pod of the MPS control daemons gone, and no API server, the command undoes a
// claim of any kind, and nothing of the driver is left.
func TestCleanupOfEveryKind(t *testing.T) {
	ofEveryKind(t, func(m *matrix, claim kubelet.Claim) {
		m.plugin.Kill()
		if m.pod != nil {
			m.pod.End()
		}
		must(m, m.bed.API.Away())
		if out, err := m.bed.Cleanup(); err != nil {
			m.Fatalf("%v: %s", err, out)
		}
		must(m, idle(m.bed))
		for _, dir := range m.bed.StateDirs() {
			entries, err := os.ReadDir(dir)
			must(m, err)
			for _, e := range entries {
				m.Errorf("left in %s: %s", dir, e.Name())
			}
		}
	})
}

// While the API server is away the kubelet hears how well devices are, and what nobody owns is
// removed: a partition of which the record, the index and the spec are lost. A claim that may be gone is kept.
func TestHealthAndReconcilerWithoutAPI(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8", gpusim.WithFile(four))
	settings := append(eager(), process.Flag("mig-devices", "on-demand"), process.Flag("health-interval", "1s"))
	p := b.Start(settings...)
	p.WaitReady()
	k := kind{partitions: []string{"0/2g.20gb/4"}}
	lost, kept := k.claim(b, "lost"), b.Allocated("kept", []int{2})
	k.prepare(t, b, lost)
	prepare(t, b, kept, 2)
	p.Kill()
	deleteClaim(t, b, kept)
	must(t, b.API.Away())
	for _, path := range []string{b.RecordPath(lost), b.SpecPath(lost)} {
		must(t, os.Remove(path))
	}
	must(t, os.RemoveAll(b.HoldersOf(0)))
	must(t, b.Node.SetRecoveryAction(2, 1))
	b.Start(settings...)
	inform(t, b, b.Device(2), kubelet.Unhealthy)
	b.Eventually("the end of the partition", func() error { return idle(b) })
	if !b.Record(kept.UID) {
		t.Error("a claim was undone of which nobody could say that it is gone")
	}
	must(t, b.API.Back())
	undone(t, b, kept)
}

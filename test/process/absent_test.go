package process_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
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
	ofEveryKind(t, func(m *matrix, _ kubelet.Claim) {
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

// Who changes the GPU driver asks the plugin to end, as driver managers do: nothing of the driver is
// open then in any process, the claims of pods that run stay recorded, and the next plugin finds them with the new driver.
func TestHandlesAreReleased(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	b := process.NewOn(t, node)
	p := b.Start()
	p.WaitReady()
	claim := b.Allocated("claim", []int{1})
	prepare(t, b, claim, 1)
	// This process simulates the driver, and is no user of it.
	users := func() (pids []string) {
		t.Helper()
		maps, err := filepath.Glob("/proc/[0-9]*/maps")
		must(t, err)
		for _, path := range maps {
			dir := filepath.Dir(path)
			if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
				continue
			}
			text, _ := os.ReadFile(path) // it may have ended
			open := string(text)
			files, _ := filepath.Glob(filepath.Join(dir, "fd", "*"))
			for _, f := range files {
				to, _ := os.Readlink(f)
				open += to + "\n"
			}
			if strings.Contains(open, node.DriverRoot()+"/") {
				pids = append(pids, filepath.Base(dir))
			}
		}
		return pids
	}
	if pids := users(); !slices.Contains(pids, strconv.Itoa(p.PID())) {
		t.Fatalf("the plugin is not among those that have the driver open: %v", pids)
	}
	p.Terminate()
	if pids := users(); len(pids) > 0 {
		t.Errorf("the driver is open in the processes %v", pids)
	}
	file, err := nodefile.Preset("t4-4")
	must(t, err)
	b.Node, err = gpusim.Create(t.Context(), node.Dir(), file, gpusim.WithFile(func(f *nodefile.File) { f.Driver.Version = "590.44.01" }))
	must(t, err)
	if !b.Record(claim.UID) {
		t.Error("the claim has no record")
	}
	b.Start()
	refused(t, b, b.Allocated("thief", []int{1}), "default/claim")
	prepare(t, b, claim, 1)
	unprepare(t, b, claim)
	clean(t, b)
}

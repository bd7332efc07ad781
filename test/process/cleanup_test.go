package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/process"
)

// A node whose plugin is gone for good, with claims that are still prepared: one command undoes
// everything, without API server and kubelet, and then nothing of the driver is left.
func TestCleanup(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	idle, busy := b.Allocated("idle", []int{0, 1}), b.Allocated("busy", []int{2})
	prepare(t, b, idle, 0, 1)
	prepare(t, b, busy, 2)
	// The pod of the MPS control daemons was here and is gone.
	must(t, os.MkdirAll(filepath.Join(b.DataDir(), "mps/daemons", b.Device(3), "pipe"), 0o755))
	must(t, os.WriteFile(filepath.Join(b.DataDir(), "mps/life.lock"), nil, 0o600))
	fails := func(words ...string) {
		t.Helper()
		out, err := b.Cleanup()
		if err == nil {
			t.Fatalf("cleanup succeeded: %s", out)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("cleanup does not say %q: %s", w, out)
			}
		}
	}
	fails("a plugin of this driver runs on this node")
	if !b.Record(idle.UID) {
		t.Error("a claim was undone under a running plugin")
	}
	p.Kill()
	must(t, b.API.Away())
	must(t, b.Node.SetClients(2, 1))
	fails("default/busy", "--force")
	if b.Record(idle.UID) || !b.Record(busy.UID) {
		t.Errorf("idle is recorded: %t, busy: %t", b.Record(idle.UID), b.Record(busy.UID))
	}
	for range 2 {
		if out, err := b.Cleanup("--force"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, dir := range b.StateDirs() {
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if e.Name() != "nvlink.json" {
				t.Errorf("left in %s: %s", dir, e.Name())
			}
		}
	}
	must(t, b.Node.SetClients(2, 0))
	must(t, b.API.Back())
	b.Start()
	prepare(t, b, idle, 0, 1)
	unprepare(t, b, idle)
}

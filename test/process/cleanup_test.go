package process_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubeapi"
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
			t.Errorf("left in %s: %s", dir, e.Name())
		}
	}
	must(t, b.Node.SetClients(2, 0))
	must(t, b.API.Back())
	b.Start()
	prepare(t, b, idle, 0, 1)
	unprepare(t, b, idle)
}

// What is known of a GPU that is ill, and of one that is missing, is kept over a restart. After an
// uninstall, which the plugin sees by its permissions, nobody needs it.
func TestUninstallWithSickGPUs(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(lasting(), process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	must(t, b.Node.InjectXID(1, gpusim.XID{Code: 79}))
	must(t, b.Node.LoseGPU(2))
	left := func() []string {
		var names []string
		for _, path := range []string{"health.json", "nvlink.json", "claims", "holders", "locks"} {
			if _, err := os.Stat(filepath.Join(b.DataDir(), path)); err == nil {
				names = append(names, path)
			}
		}
		return names
	}
	ill := func() {
		t.Helper()
		b.Eventually("taints of the two", func() error {
			if taints := taintsNow(t, b); len(taints[b.Device(1)]) == 0 || len(taints[b.Device(2)]) == 0 {
				return fmt.Errorf("taints are %v", taints)
			}
			return nil
		})
	}
	ill()
	p.Terminate()
	if diff := cmp.Diff([]string{"health.json", "nvlink.json"}, left()); diff != "" {
		t.Errorf("kept over a restart (-want +got):\n%s", diff)
	}
	p = b.Start(lasting(), process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	ill()
	b.API.Inject(kubeapi.Fault{Match: kubeapi.Match{User: process.APIUser, Resource: "nodes"}, Code: http.StatusForbidden})
	p.Terminate()
	if got := left(); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

package control

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/driverroot"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Of the host's libraries a daemon gets the driver's: the C library that lies beside them would
// end it.
func TestLibraries(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "usr/lib64")
	must(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"libcuda.so.1", "libcuda.so.580.95.05", "libnvidia-ptxjitcompiler.so.1", "libc.so.6", "libm.so.6", "libstdc++.so.6"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	c := &Control{Layout: mps.Layout(t.TempDir()), DriverRoot: root}
	daemon := c.Layout.Daemon("gpu")
	must(t, os.MkdirAll(daemon.Libraries(), 0o755))
	must(t, os.WriteFile(filepath.Join(daemon.Libraries(), "libcuda.so.570"), nil, 0o644)) // of the driver before
	must(t, c.linkLibraries(daemon))
	entries, err := os.ReadDir(daemon.Libraries())
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if _, err := os.Stat(filepath.Join(daemon.Libraries(), e.Name())); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(names, " "); got != "libcuda.so.1 libcuda.so.580.95.05 libnvidia-ptxjitcompiler.so.1" {
		t.Errorf("libraries %s", got)
	}
}

// A driver that is not there (yet) is told with the name of what is missing.
func TestWithoutADriver(t *testing.T) {
	c := &Control{Layout: mps.Layout(t.TempDir()), DriverRoot: t.TempDir()}
	must(t, os.MkdirAll(string(c.Layout.Daemon("gpu")), 0o755))
	_, err := c.Command(t.Context(), "gpu", "get_server_list")
	var missing *driverroot.NotFoundError
	if !errors.As(err, &missing) || missing.Name != Program {
		t.Errorf("error %v", err)
	}
}

// A process is waited for that is no child, and one whose number another has now is gone.
func TestWait(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	must(t, cmd.Start())
	started, ok := startOf(cmd.Process.Pid)
	if !ok {
		t.Fatal("no start")
	}
	p := supervisor.Process{PID: cmd.Process.Pid, Started: started}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Control{}).Wait(ended, p); !errors.Is(err, context.Canceled) {
		t.Errorf("a process that runs: %v", err)
	}
	must(t, (&Control{}).Wait(t.Context(), supervisor.Process{PID: p.PID, Started: p.Started + 1}))
	must(t, (process{Process: supervisor.Process{PID: p.PID, Started: p.Started + 1}}).kill())
	must(t, (process{Process: p}).kill())
	must(t, (&Control{}).Wait(t.Context(), p))
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	must(t, (&Control{}).Wait(t.Context(), p))
	must(t, (process{Process: p}).kill())
}

func TestEnterWithoutArguments(t *testing.T) {
	if err := Enter([]string{"/x"}); err == nil || !strings.Contains(err.Error(), EnterCommand) {
		t.Errorf("error %v", err)
	}
}

package nvml_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/test/gpusim"
)

// machine is a simulated node with the library and the scanner on it.
type machine struct {
	*gpusim.Node
	library *nvml.Library
	scanner *inventory.Scanner
}

// newMachine makes a node. This process is bound to one library for ever, so all machines share
// one copy of the simulator, which finds its node through the environment.
func newMachine(t testing.TB, preset string, opts ...gpusim.Option) machine {
	t.Helper()
	return machineWith(t, preset, time.Minute, opts...)
}

func machineWith(t testing.TB, preset string, callTimeout time.Duration, opts ...gpusim.Option) machine {
	t.Helper()
	return machineOptions(t, preset, nvml.Options{CallTimeout: callTimeout}, opts...)
}

func machineOptions(t testing.TB, preset string, options nvml.Options, opts ...gpusim.Option) machine {
	t.Helper()
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	if err != nil {
		t.Fatal(err)
	}
	n := gpusim.New(t, preset, opts...)
	t.Setenv("GPUSIM_ROOT", n.DriverRoot())
	t.Setenv("GPUSIM_STATE", n.StateFile())
	options.Path = built.Library
	l := nvml.New(options)
	t.Cleanup(func() {
		// A call that a test left hanging has to return, or the next node has to wait for it.
		if err := n.ClearFaults(); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return l.Close(context.Background()) == nil })
	})
	return machine{Node: n, library: l, scanner: inventory.NewScanner(l, sysfs.New(n.SysRoot(), n.ProcRoot())).Serving(options.Selection)}
}

func (m machine) scan(t testing.TB) inventory.Snapshot {
	t.Helper()
	s, err := m.scanner.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// do fails the test on an error of a simulator's action.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what another thread does.
func eventually(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Error("waited in vain")
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// isolatedVariable tells a test that it runs in a process of its own.
const isolatedVariable = "GPU_DRIVER_TEST_ISOLATED"

// isolated runs the test in a process of its own, for what binds the process to a library. It
// returns true in that process only.
func isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolatedVariable) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), isolatedVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
	return false
}

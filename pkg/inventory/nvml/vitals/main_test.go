package vitals_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/test/gpusim"
)

// machine is a simulated node with the library and the reader on it.
type machine struct {
	*gpusim.Node
	library *nvml.Library
	scanner *inventory.Scanner
	reader  vitals.Reader
	gpus    []inventory.GPUID
}

// newMachine makes a node. This process is bound to one library for ever, so all machines share one
// copy of the simulator, which finds its node through the environment.
func newMachine(t *testing.T, preset string, limit time.Duration) machine {
	t.Helper()
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	do(t, err)
	n := gpusim.New(t, preset)
	t.Setenv("GPUSIM_ROOT", n.DriverRoot())
	t.Setenv("GPUSIM_STATE", n.StateFile())
	l := nvml.New(nvml.Options{Path: built.Library, CallTimeout: limit, Calls: vitals.Calls()})
	t.Cleanup(func() {
		// A call that a test left hanging has to return, or the next node has to wait for it.
		do(t, n.ClearFaults())
		eventually(t, func() bool { return l.Close(context.Background()) == nil })
	})
	m := machine{Node: n, library: l, scanner: inventory.NewScanner(l, sysfs.New(n.SysRoot(), n.ProcRoot())), reader: vitals.Reader{Lender: l, Turn: 50 * time.Millisecond}}
	snapshot, err := m.scanner.Scan(t.Context())
	do(t, err)
	for _, g := range snapshot.GPUs {
		m.gpus = append(m.gpus, inventory.GPUID{PCI: g.PCI, UUID: g.UUID})
	}
	return m
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what another thread does.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
		time.Sleep(time.Millisecond)
	}
}

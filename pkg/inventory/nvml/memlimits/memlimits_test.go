package memlimits_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/memlimits"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// limiter is one for the driver of a simulated node, with the node's GPUs. This process is bound to
// one library for ever, so all nodes share one copy, which finds its node through the environment.
func limiter(t *testing.T, calls []string, options ...gpusim.Option) (memlimits.Limiter, *gpusim.Node, []inventory.GPUID) {
	t.Helper()
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	if err != nil {
		t.Fatal(err)
	}
	n := gpusim.New(t, "t4-4", append([]gpusim.Option{gpusim.WithFile(func(f *nodefile.File) { f.Driver = nodefile.Driver{Version: "600.10", CUDA: "13.4"} })}, options...)...)
	t.Setenv("GPUSIM_ROOT", n.DriverRoot())
	t.Setenv("GPUSIM_STATE", n.StateFile())
	l := nvml.New(nvml.Options{Path: built.Library, Calls: calls})
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var gpus []inventory.GPUID
	for _, g := range n.Spec().GPUs {
		at, err := pci.Parse(g.PCI.String())
		if err != nil {
			t.Fatal(err)
		}
		gpus = append(gpus, inventory.GPUID{PCI: at, UUID: g.UUID})
	}
	return memlimits.Limiter{Lender: l}, n, gpus
}

// What is set is in force for the cgroup, on that GPU.
func TestSet(t *testing.T) {
	l, node, gpus := limiter(t, memlimits.Calls())
	cgroup := t.TempDir()
	for _, gpu := range gpus {
		if err := l.Check(t.Context(), gpu, cgroup); err != nil {
			t.Errorf("GPU %s: %v", gpu.PCI, err)
		}
	}
	for _, bytes := range []uint64{300 << 20, 300 << 20, 200 << 20} {
		if err := l.Set(t.Context(), gpus[1], cgroup, bytes); err != nil {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if err := l.Check(t.Context(), gpus[1], cgroup); err != nil {
		t.Errorf("where one is set: %v", err)
	}
	// A driver that takes a limit and forgets it has set none.
	if err := node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetMemoryLimits_v1", GPU: gpusim.AnyGPU, Code: 6, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if err := l.Set(t.Context(), gpus[1], cgroup, 100<<20); err == nil {
		t.Error("a limit that is not read back counts as set")
	}
}

func TestErrors(t *testing.T) {
	l, _, gpus := limiter(t, memlimits.Calls(), gpusim.WithFile(func(f *nodefile.File) { f.GPUs[0].Override = []byte(`{"unsupported": ["memoryLimits"]}`) }))
	cgroup := t.TempDir()
	swapped := inventory.GPUID{PCI: gpus[1].PCI, UUID: gpus[2].UUID}
	for name, tt := range map[string]struct {
		gpu    inventory.GPUID
		cgroup string
		is     error
		says   string
	}{
		"a board without":  {gpus[0], cgroup, inventory.ErrNotSupported, "code 3"},
		"another board":    {swapped, cgroup, inventory.ErrNoSuchGPU, gpus[2].UUID},
		"no such cgroup":   {gpus[3], filepath.Join(cgroup, "none"), nil, "code 17"},
		"more than it has": {gpus[3], cgroup, nil, "code 2"},
	} {
		err := l.Set(t.Context(), tt.gpu, tt.cgroup, 1<<50)
		if name != "more than it has" {
			err = errors.Join(l.Check(t.Context(), tt.gpu, tt.cgroup), l.Set(t.Context(), tt.gpu, tt.cgroup, 1<<20))
		}
		if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A library without the calls, as before CUDA 13.4, is asked for nothing.
func TestOlderDriver(t *testing.T) {
	for _, has := range [][]string{nil, {"nvmlDeviceSetMemoryLimits_v1"}, {"nvmlDeviceGetMemoryLimits_v1"}} {
		l, _, gpus := limiter(t, has)
		if err := l.Check(t.Context(), gpus[0], t.TempDir()); !errors.Is(err, inventory.ErrNotSupported) || !strings.Contains(err.Error(), "CUDA 13.4") {
			t.Errorf("with %v: %v", has, err)
		}
	}
}

package preset_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

var update = flag.Bool("update", false, "record the simulated machines anew")

// record looks at a simulated machine as the plugin does.
func record(t *testing.T, name string) preset.Machine {
	t.Helper()
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := nodefile.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	node := gpusim.New(t, name)
	// The process keeps the library that it loaded first; it finds the node by these.
	t.Setenv("GPUSIM_ROOT", node.DriverRoot())
	t.Setenv("GPUSIM_STATE", node.StateFile())
	library := nvml.New(nvml.Options{Path: built.Library, Partitions: true})
	defer library.Close(context.WithoutCancel(t.Context()))
	snapshot, err := inventory.NewScanner(library, sysfs.New(node.SysRoot(), node.ProcRoot())).Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(snapshot.Problems) > 0 || len(snapshot.Unusable) > 0 || !snapshot.Driver.Present {
		t.Fatalf("the machine has faults: %+v", snapshot)
	}
	return preset.Machine{Description: file.Description, Snapshot: snapshot}
}

// What is embedded is what the plugin sees on the simulated machines today. After a change of a
// machine or of the scan: go test ./pkg/kubectlgpu/preset -update
func TestMachinesAreCurrent(t *testing.T) {
	if diff := cmp.Diff(nodefile.Presets(), preset.Names()); diff != "" && !*update {
		t.Errorf("presets (-simulator +embedded):\n%s", diff)
	}
	for _, name := range nodefile.Presets() {
		t.Run(name, func(t *testing.T) {
			now, err := preset.Encode(record(t, name))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("machines", name+".json")
			if *update {
				if err := os.WriteFile(file, now, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			have, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(now, have) {
				t.Errorf("%s is not current (-file +now):\n%s", file, cmp.Diff(string(have), string(now)))
			}
		})
	}
}

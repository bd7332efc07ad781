package gpusim_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// edits is what a child gets from nvcdi for a node.
type edits struct {
	Nodes, Mounts, Hooks []string
	Devices              map[string][]string
}

// commonEditsChild runs nvcdi against the driver root given as its argument, for every GPU.
func commonEditsChild(lib nvml.Interface, args []string) (any, error) {
	root := args[0]
	cdi, err := nvcdi.New(nvcdi.WithNvmlLib(lib), nvcdi.WithDriverRoot(root), nvcdi.WithDevRoot(root), nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNVIDIACDIHookPath("/hook"), nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils))
	if err != nil {
		return nil, err
	}
	common, err := cdi.GetCommonEdits()
	if err != nil {
		return nil, err
	}
	out := edits{Devices: map[string][]string{}}
	for _, n := range common.DeviceNodes {
		out.Nodes = append(out.Nodes, n.Path)
	}
	for _, m := range common.Mounts {
		out.Mounts = append(out.Mounts, m.ContainerPath)
	}
	for _, h := range common.Hooks {
		out.Hooks = append(out.Hooks, strings.Join(h.Args, " "))
	}
	for _, id := range args[1:] {
		specs, err := cdi.GetDeviceSpecsByID(id)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", id, err)
		}
		for _, spec := range specs {
			for _, n := range spec.ContainerEdits.DeviceNodes {
				out.Devices[id] = append(out.Devices[id], n.HostPath)
			}
		}
	}
	return out, nil
}

func TestNVCDIWritesFullSpecs(t *testing.T) {
	t.Parallel()
	for _, preset := range []string{"hgx-h100-8", "mixed", "gb200-nvl72"} {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			node := gpusim.New(t, preset)
			got := inChild[edits](t, node, "common", append([]string{node.DriverRoot()}, node.UUIDs()...)...)
			slices.Sort(got.Nodes)
			wantNodes := []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}
			if diff := cmp.Diff(wantNodes, got.Nodes); diff != "" {
				t.Errorf("common device nodes (-want +got):\n%s", diff)
			}
			version, lib := node.Spec().Driver.Version, filepath.Dir(strings.TrimPrefix(node.Library(), node.DriverRoot()))
			for _, want := range []string{
				filepath.Join(lib, "libnvidia-ml.so."+version), filepath.Join(lib, "libcuda.so."+version),
				// The state goes into containers without anybody asking for it.
				filepath.Join(lib, "libnvidia-simstate.so."+version), "/usr/bin/nvidia-smi",
				filepath.Join(lib, "libgpusim-client.so."+version), "/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server", "/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
			} {
				if !slices.Contains(got.Mounts, want) {
					t.Errorf("no mount of %s among %v", want, got.Mounts)
				}
			}
			if !strings.Contains(strings.Join(got.Hooks, "\n"), "libnvidia-ml.so."+version+"::") && !strings.Contains(strings.Join(got.Hooks, "\n"), "libcuda.so.1::") {
				t.Errorf("no hook makes the links of the libraries: %v", got.Hooks)
			}
			for i, uuid := range node.UUIDs() {
				path := filepath.Join(node.DevRoot(), fmt.Sprintf("dev/nvidia%d", node.Spec().GPUs[i].Minor))
				if diff := cmp.Diff([]string{path}, got.Devices[uuid]); diff != "" {
					t.Errorf("device nodes of GPU %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestNVCDIWithMissingParts(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) {
		f.Missing = []string{"uvm", "uvmTools", "modeset", "firmware", "smi", "computeLibraries", "graphics", "mps", "persistenced"}
	}))
	got := inChild[edits](t, node, "common", node.DriverRoot(), node.UUIDs()[2])
	if diff := cmp.Diff([]string{"/dev/nvidiactl"}, got.Nodes); diff != "" {
		t.Errorf("common device nodes (-want +got):\n%s", diff)
	}
	for _, mount := range got.Mounts {
		if strings.Contains(mount, "firmware") || strings.Contains(mount, "nvidia-smi") || strings.Contains(mount, "ptxjit") {
			t.Errorf("%s is mounted though the node file leaves it out", mount)
		}
	}
}

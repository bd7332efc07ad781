package rootfs_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvpci"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/rootfs"
)

// builder lays out a preset; the native parts are replaced by an empty stub library.
func builder(t *testing.T, preset string, change func(*nodefile.File)) *rootfs.Builder {
	t.Helper()
	file, err := nodefile.Preset(preset)
	must(t, err)
	if change != nil {
		change(file)
	}
	node, err := nodefile.Resolve(file)
	must(t, err)
	stub, source := filepath.Join(t.TempDir(), "stub.so"), filepath.Join(t.TempDir(), "stub.c")
	must(t, os.WriteFile(source, []byte("void nvmlDeviceSetMemoryLimits_v1(void) {}\nvoid nvmlDeviceGetMemoryLimits_v1(void) {}\nvoid nvmlInit_v2(void) {}\n"), 0o644))
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-nostdlib", "-Wl,-soname,"+rootfs.StubName, "-o", stub, "-x", "c", source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &rootfs.Builder{
		Layout: rootfs.Layout{Dir: t.TempDir(), Version: node.Driver.Version},
		Node:   node,
		Native: rootfs.Native{Library: stub, Stub: stub, Programs: map[string]string{"nvidia-smi": stub, "nvidia-cuda-mps-control": stub, "gpusim-client": stub}},
	}
}

func created(t *testing.T, preset string, change func(*nodefile.File)) *rootfs.Builder {
	t.Helper()
	b := builder(t, preset, change)
	must(t, b.Create())
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// The library that publishes devices reads PCIe roots and NUMA nodes from here.
func TestKubernetesReadsTopology(t *testing.T) {
	t.Parallel()
	for _, preset := range nodefile.Presets() {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			b := created(t, preset, nil)
			for i := range b.Node.GPUs {
				gpu := &b.Node.GPUs[i]
				root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(gpu.PCI.String(), deviceattribute.WithFSFromRoot(b.Sys()))
				must(t, err)
				if diff := cmp.Diff(resourceapi.DeviceAttribute{StringValue: &gpu.Root}, root.Value); diff != "" {
					t.Errorf("PCIe root of %s (-want +got):\n%s", gpu.PCI, diff)
				}
				numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(gpu.PCI.String(), deviceattribute.ScalarAttribute, deviceattribute.WithFSFromRoot(b.Sys()))
				if gpu.NUMA < 0 {
					if err == nil {
						t.Errorf("%s has no NUMA node, yet the attribute is %v", gpu.PCI, numa.Value)
					}
					continue
				}
				must(t, err)
				if *numa.Value.IntValue != int64(gpu.NUMA) {
					t.Errorf("NUMA node of %s is %d, want %d", gpu.PCI, *numa.Value.IntValue, gpu.NUMA)
				}
			}
		})
	}
}

func TestNvpciSeesTheBoards(t *testing.T) {
	t.Parallel()
	b := created(t, "mixed", nil)
	pci := nvpci.New(nvpci.WithPCIDevicesRoot(filepath.Join(b.Sys(), "bus/pci/devices")))
	got := map[string]string{}
	gpus, err := pci.GetGPUs()
	must(t, err)
	for _, g := range gpus {
		got[g.Address] = fmt.Sprintf("%04x %s %d %d", g.Device, g.Driver, g.NumaNode, g.IommuGroup)
	}
	want := map[string]string{
		"0000:17:00.0": "20b5 nvidia 0 40", "0000:65:00.0": "20b5 nvidia 0 41", "0000:98:00.0": "2321 nvidia 1 42",
		"0000:b1:00.0": "26b9 nvidia 1 43", "0000:ca:00.0": "1eb8 nvidia -1 44",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("boards that nvpci sees (-want +got):\n%s", diff)
	}
}

func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	b := created(t, "t4-4", func(f *nodefile.File) { f.Majors = nodefile.Majors{GPU: 240, UVM: 241, Caps: 242} })
	want := map[string]string{
		"nvidia0": "240:0 666", "nvidia3": "240:3 666", "nvidiactl": "240:255 666", "nvidia-modeset": "240:254 666", "nvidia-uvm": "241:0 666",
		"nvidia-uvm-tools": "241:1 666", "nvidia-caps/nvidia-cap1": "242:1 400", "nvidia-caps/nvidia-cap2": "242:2 444",
	}
	got := map[string]string{}
	for name := range want {
		var stat unix.Stat_t
		must(t, unix.Stat(filepath.Join(b.Dev(), name), &stat))
		if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
			t.Errorf("%s is no character device", name)
		}
		got[name] = fmt.Sprintf("%d:%d %o", unix.Major(stat.Rdev), unix.Minor(stat.Rdev), stat.Mode&0o777)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	devices := read(t, filepath.Join(b.Proc(), "devices"))
	for _, line := range []string{"240 nvidia\n", "241 nvidia-uvm\n", "242 nvidia-caps\n"} {
		if !strings.Contains(devices, line) {
			t.Errorf("proc/devices lacks %q:\n%s", line, devices)
		}
	}
}

func TestLibrariesCarryTheirNames(t *testing.T) {
	t.Parallel()
	b := created(t, "t4-4", nil)
	for file, soname := range map[string]string{
		"libcuda.so.570.172.08": "libcuda.so.1", "libnvidia-nvvm.so.570.172.08": "libnvidia-nvvm.so.4",
		"libnvidia-ptxjitcompiler.so.570.172.08": "libnvidia-ptxjitcompiler.so.1", "libnvidia-gpucomp.so.570.172.08": "libnvidia-gpucomp.so.570.172.08",
	} {
		library, err := elf.Open(filepath.Join(b.Lib(), file))
		must(t, err)
		names, err := library.DynString(elf.DT_SONAME)
		must(t, err)
		must(t, library.Close())
		if diff := cmp.Diff([]string{soname}, names); diff != "" {
			t.Errorf("SONAME of %s (-want +got):\n%s", file, diff)
		}
		if target, err := filepath.EvalSymlinks(filepath.Join(b.Lib(), soname)); err != nil || filepath.Base(target) != file {
			t.Errorf("%s leads to %q, %v; want %s", soname, target, err, file)
		}
	}
}

func TestMissingParts(t *testing.T) {
	t.Parallel()
	paths := map[string]string{
		"computeLibraries": "driver/usr/lib/" + rootfs.Triplet() + "/libnvidia-opencl.so.1",
		"firmware":         "driver/lib/firmware",
		"graphics":         "driver/etc/vulkan/icd.d/nvidia_icd.json",
		"migMinors":        "proc/driver/nvidia-caps/mig-minors",
		"modeset":          "driver/dev/nvidia-modeset",
		"mps":              "driver/usr/bin/nvidia-cuda-mps-control",
		"persistenced":     "driver/usr/bin/nvidia-persistenced",
		"procVersion":      "proc/driver/nvidia/version",
		"smi":              "driver/usr/bin/nvidia-smi",
		"uvm":              "driver/dev/nvidia-uvm",
		"uvmTools":         "driver/dev/nvidia-uvm-tools",
	}
	whole := created(t, "t4-4", nil)
	for _, part := range rootfs.Parts() {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			without := created(t, "t4-4", func(f *nodefile.File) { f.Missing = []string{part} })
			for name, path := range paths {
				if !exists(filepath.Join(whole.Dir, path)) {
					t.Errorf("%s: a whole root lacks %s", name, path)
				}
				if got := exists(filepath.Join(without.Dir, path)); got != (name != part) {
					t.Errorf("without %s: %s exists: %t", part, path, got)
				}
			}
		})
	}
	if len(paths) != len(rootfs.Parts()) {
		t.Errorf("%d parts are tested, there are %v", len(paths), rootfs.Parts())
	}
	if err := builder(t, "t4-4", func(f *nodefile.File) { f.Missing = []string{"engine"} }).Create(); !errors.Is(err, rootfs.ErrUnknownPart) {
		t.Errorf("an unknown part: %v, want ErrUnknownPart", err)
	}
}

func TestGPULeavesAndReturns(t *testing.T) {
	t.Parallel()
	b := created(t, "hgx-h100-8", nil)
	before := tree(t, b.Dir)
	gpu := &b.Node.GPUs[3]
	must(t, b.RemoveGPU(gpu))
	for path := range tree(t, b.Dir) {
		if strings.Contains(path, gpu.PCI.String()) {
			t.Errorf("%s is left of the removed GPU", path)
		}
	}
	if exists(b.NodePath(gpu.Minor)) {
		t.Error("the device node of the removed GPU is left")
	}
	must(t, b.RemoveGPU(gpu))
	must(t, b.AddGPU(gpu))
	if diff := cmp.Diff(before, tree(t, b.Dir)); diff != "" {
		t.Errorf("after the return the root differs (-before +after):\n%s", diff)
	}
}

// tree describes every file below dir by its type and, for links, its target.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		out[strings.TrimPrefix(path, dir)] = entry.Type().String()
		if entry.Type()&fs.ModeSymlink != 0 {
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("dangling link: %w", err)
			}
		}
		return nil
	}))
	return out
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	for _, preset := range []string{"dgx1-v100", "gb200-nvl72"} {
		if got := tree(t, created(t, preset, nil).Dir); len(got) < 100 {
			t.Errorf("%s: only %d files", preset, len(got))
		}
	}
}

// The kernel driver's table ends with the last compute instance of the last GPU at 4322.
func TestCapabilityMinors(t *testing.T) {
	t.Parallel()
	b := created(t, "hgx-h100-8", nil)
	lines := strings.Split(strings.TrimSpace(read(t, filepath.Join(b.Proc(), "driver/nvidia-caps/mig-minors"))), "\n")
	if len(lines) != 4322 || lines[0] != "config 1" || lines[2] != "gpu0/gi0/access 3" || lines[len(lines)-1] != "gpu31/gi14/ci7/access 4322" {
		t.Errorf("%d lines, from %q and %q to %q", len(lines), lines[0], lines[2], lines[len(lines)-1])
	}
	seen := map[int]bool{1: true, 2: true}
	rapid.Check(t, func(t *rapid.T) {
		gpu, gi, ci := rapid.IntRange(0, 31).Draw(t, "gpu"), rapid.IntRange(0, 14).Draw(t, "gi"), rapid.IntRange(-1, 7).Draw(t, "ci")
		minor := rootfs.CapMinor(gpu, gi, ci)
		want := fmt.Sprintf("gpu%d/gi%d/ci%d/access %d", gpu, gi, ci, minor)
		if ci < 0 {
			want = fmt.Sprintf("gpu%d/gi%d/access %d", gpu, gi, minor)
		}
		if lines[minor-1] != want {
			t.Fatalf("line of minor %d is %q, want %q", minor, lines[minor-1], want)
		}
		seen[minor] = true
	})
	if len(seen) < 20 {
		t.Errorf("only %d minors were compared", len(seen))
	}
	if got := read(t, filepath.Join(b.Proc(), "driver/nvidia/capabilities/mig/config")); !strings.HasPrefix(got, "DeviceFileMinor: 1\nDeviceFileMode: 256\n") {
		t.Errorf("config capability:\n%s", got)
	}
}

func TestProcInformation(t *testing.T) {
	t.Parallel()
	b := created(t, "two-islands", nil)
	got := read(t, filepath.Join(b.Proc(), "driver/nvidia/gpus/0000:61:00.0/information"))
	for _, want := range []string{"NVIDIA A100-SXM4-80GB", b.Node.GPUs[3].UUID, "Device Minor: \t 3", "Bus Location: \t 0000:61:00.0"} {
		if !strings.Contains(got, want) {
			t.Errorf("information lacks %q:\n%s", want, got)
		}
	}
	if got := read(t, filepath.Join(b.Proc(), "driver/nvidia/version")); !strings.Contains(got, " 580.105.08 ") {
		t.Errorf("version:\n%s", got)
	}
}

// symbols lists what a root's library exports.
func symbols(t *testing.T, b *rootfs.Builder) []string {
	t.Helper()
	library, err := elf.Open(filepath.Join(b.Lib(), "libnvidia-ml.so.1"))
	must(t, err)
	defer library.Close()
	all, err := library.DynamicSymbols()
	must(t, err)
	var out []string
	for _, symbol := range all {
		if symbol.Name != "" {
			out = append(out, symbol.Name)
		}
	}
	slices.Sort(out)
	return out
}

func TestSymbolsOfOlderDrivers(t *testing.T) {
	t.Parallel()
	all := []string{"nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1", "nvmlInit_v2"}
	for _, test := range []struct {
		name  string
		cuda  string
		lacks []string
		want  []string
	}{
		{"with memory limits", "13.4", nil, all},
		{"before them", "13.3", nil, all[2:]},
		{"as the node file says", "13.4", []string{"nvmlInit_v2"}, all[:2]},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := created(t, "t4-4", func(f *nodefile.File) { f.Driver.CUDA, f.Driver.Lacks = test.cuda, test.lacks })
			if diff := cmp.Diff(test.want, symbols(t, b)); diff != "" {
				t.Errorf("symbols of CUDA %s without %v (-want +got):\n%s", test.cuda, test.lacks, diff)
			}
		})
	}
	err := builder(t, "t4-4", func(f *nodefile.File) { f.Driver.Lacks = []string{"nvmlColor"} }).Create()
	if err == nil || !strings.Contains(err.Error(), `driver.lacks: nvml.h declares no function "nvmlColor"`) {
		t.Errorf("an unknown function is lacking: %v", err)
	}
}

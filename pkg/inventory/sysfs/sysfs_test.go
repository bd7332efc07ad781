package sysfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/pci"
)

// tree is a sysfs and proc laid out by hand.
type tree struct{ dir string }

func newTree(t testing.TB) tree {
	t.Helper()
	r := tree{t.TempDir()}
	r.mkdir(t, "sys/bus/pci/devices")
	r.mkdir(t, "proc/driver/nvidia")
	return r
}

func (r tree) mkdir(t testing.TB, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(r.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (r tree) write(t testing.TB, name, text string) {
	t.Helper()
	r.mkdir(t, filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (r tree) link(t testing.TB, target, name string) {
	t.Helper()
	r.mkdir(t, filepath.Dir(name))
	if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// device lays out a device behind a bridge as the kernel does, and returns its directory.
func (r tree) device(t testing.TB, address, class, driver, numa string) string {
	t.Helper()
	inside := "devices/pci" + address[:7] + "/" + address[:7] + ":01.0/" + address
	dir := "sys/" + inside
	r.write(t, dir+"/vendor", "0x10de\n")
	r.write(t, dir+"/class", class+"\n")
	if numa != "" {
		r.write(t, dir+"/numa_node", numa+"\n")
	}
	if driver != "" {
		r.link(t, "../../../../bus/pci/drivers/"+driver, dir+"/driver")
	}
	r.link(t, "../../../"+inside, "sys/bus/pci/devices/"+address)
	return dir
}

func (r tree) open() *sysfs.Tree {
	return sysfs.New(filepath.Join(r.dir, "sys"), filepath.Join(r.dir, "proc"))
}

func at(t testing.TB, text string) pci.Address {
	t.Helper()
	a, err := pci.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestGPUs(t *testing.T) {
	r := newTree(t)
	r.device(t, "0000:1a:00.0", "0x030200", "nvidia", "1")
	r.device(t, "0000:1b:00.0", "0x030000", "vfio-pci", "0")
	r.device(t, "0009:01:00.0", "0x030200", "", "-1")
	virtual := r.device(t, "0000:1a:00.4", "0x030200", "nvidia", "")
	r.link(t, "../0000:1a:00.0", virtual+"/physfn")
	r.device(t, "0000:1c:00.0", "0x068000", "nvidia-nvswitch", "0")
	r.device(t, "0000:1b:00.1", "0x040300", "snd_hda_intel", "0")
	other := r.device(t, "0000:02:00.0", "0x030000", "ast", "0")
	r.write(t, other+"/vendor", "0x1a03\n")

	got, err := r.open().GPUs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	physical := at(t, "0000:1a:00.0")
	none := inventory.Unknown[int](inventory.ErrNotSupported)
	want := []inventory.Function{
		{PCI: physical, Driver: "nvidia", NUMANode: inventory.Known(1), PCIeRoot: inventory.Known("pci0000:1a")},
		{PCI: at(t, "0000:1a:00.4"), Driver: "nvidia", Physical: &physical, NUMANode: none, PCIeRoot: inventory.Known("pci0000:1a")},
		{PCI: at(t, "0000:1b:00.0"), Driver: "vfio-pci", NUMANode: inventory.Known(0), PCIeRoot: inventory.Known("pci0000:1b")},
		{PCI: at(t, "0009:01:00.0"), NUMANode: none, PCIeRoot: inventory.Known("pci0009:01")},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestOneOddDeviceLeavesTheOthersAlone(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(tree, testing.TB)
		// inError is part of the returned error, none when empty.
		inError string
		gpus    int
	}{
		"vendor is no number": {func(r tree, t testing.TB) { r.write(t, "sys/bus/pci/devices/0000:aa:00.0/vendor", "?") }, "vendor", 1},
		"vendor missing":      {func(r tree, t testing.TB) { r.mkdir(t, "sys/bus/pci/devices/0000:aa:00.0") }, "", 1},
		"class missing":       {func(r tree, t testing.TB) { r.write(t, "sys/bus/pci/devices/0000:aa:00.0/vendor", "0x10de") }, "class", 1},
		"no address": {func(r tree, t testing.TB) {
			r.write(t, "sys/bus/pci/devices/gpu/vendor", "0x10de")
			r.write(t, "sys/bus/pci/devices/gpu/class", "0x030200")
		}, "dddd:bb:dd.f", 1},
		"leads out of sysfs": {func(r tree, t testing.TB) {
			r.write(t, "outside/vendor", "0x10de")
			r.write(t, "outside/class", "0x030200")
			r.link(t, "../../../../../outside", "sys/bus/pci/devices/0000:aa:00.0")
		}, "escapes", 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			r.device(t, "0000:1a:00.0", "0x030200", "nvidia", "0")
			c.harm(r, t)
			got, err := r.open().GPUs(context.Background())
			if len(got) != c.gpus {
				t.Errorf("got %+v", got)
			}
			if c.inError == "" && err != nil {
				t.Errorf("error is %v", err)
			}
			if c.inError != "" && (err == nil || !strings.Contains(err.Error(), c.inError)) {
				t.Errorf("error is %v, want it to say %q", err, c.inError)
			}
		})
	}
}

func TestFactsOfADeviceThatCannotBeRead(t *testing.T) {
	r := newTree(t)
	dir := r.device(t, "0000:1a:00.0", "0x030200", "nvidia", "one")
	r.link(t, "nonsense", dir+"/physfn")
	// On some clouds the device's path leads through the hypervisor's bus, not through PCI.
	if err := os.Remove(filepath.Join(r.dir, "sys/bus/pci/devices/0000:1a:00.0")); err != nil {
		t.Fatal(err)
	}
	r.mkdir(t, "sys/devices/LNXSYSTM:00")
	if err := os.Rename(filepath.Join(r.dir, dir), filepath.Join(r.dir, "sys/devices/LNXSYSTM:00/0000:1a:00.0")); err != nil {
		t.Fatal(err)
	}
	r.link(t, "../../../devices/LNXSYSTM:00/0000:1a:00.0", "sys/bus/pci/devices/0000:1a:00.0")
	got, err := r.open().GPUs(context.Background())
	if err != nil || len(got) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got[0].NUMANode.Err == nil || errors.Is(got[0].NUMANode.Err, inventory.ErrNotSupported) {
		t.Errorf("NUMA node is %+v", got[0].NUMANode)
	}
	if got[0].PCIeRoot.Err == nil || got[0].Physical != nil {
		t.Errorf("PCIe root is %+v, physical function %v", got[0].PCIeRoot, got[0].Physical)
	}
}

func TestNUMANodeThatIsNoFile(t *testing.T) {
	r := newTree(t)
	r.mkdir(t, r.device(t, "0000:1a:00.0", "0x030200", "nvidia", "")+"/numa_node")
	got, err := r.open().GPUs(context.Background())
	if err != nil || len(got) != 1 || got[0].NUMANode.Err == nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNodesWithoutABus(t *testing.T) {
	empty := tree{t.TempDir()}
	empty.mkdir(t, "sys")
	if got, err := empty.open().GPUs(context.Background()); got != nil || err != nil {
		t.Errorf("a node without PCI: %v, %v", got, err)
	}
	if _, err := sysfs.New(filepath.Join(empty.dir, "none"), "").GPUs(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no sysfs root: %v", err)
	}
	file := tree{t.TempDir()}
	file.write(t, "sys/bus/pci/devices", "")
	if _, err := file.open().GPUs(context.Background()); err == nil {
		t.Error("a file in place of the bus is no error")
	}
}

func TestReadingEndsWithItsContext(t *testing.T) {
	r := newTree(t)
	r.device(t, "0000:1a:00.0", "0x030200", "nvidia", "0")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.open().GPUs(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("GPUs: %v", err)
	}
	if _, err := r.open().Majors(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Majors: %v", err)
	}
	if _, err := r.open().DriverModule(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("DriverModule: %v", err)
	}
}

const devices = `Character devices:
  1 mem
195 nvidia-frontend
195 nvidia
195 nvidiactl
234 nvidia-caps
511 nvidia-uvm
odd line
x nvidia-x

Block devices:
  8 sd
`

func TestMajors(t *testing.T) {
	r := newTree(t)
	r.write(t, "proc/devices", devices)
	got, err := r.open().Majors(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint32{"mem": 1, "nvidia-frontend": 195, "nvidia": 195, "nvidiactl": 195, "nvidia-caps": 234, "nvidia-uvm": 511}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("majors (-want +got):\n%s", diff)
	}
	empty := newTree(t)
	_, err = empty.open().Majors(context.Background())
	if path := filepath.Join(empty.dir, "proc", "devices"); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "--proc-root-mount") {
		t.Errorf("no file: %v, want an error that names %s and the flag", err, path)
	}
	if _, err := sysfs.New("", filepath.Join(r.dir, "none")).Majors(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no proc root: %v", err)
	}
}

func TestTheFirstOfTwoMajorsCounts(t *testing.T) {
	got := sysfs.ParseMajors([]byte("Character devices:\n 1 x\n 2 x\n"))
	if diff := cmp.Diff(map[string]uint32{"x": 1}, got); diff != "" {
		t.Errorf("majors (-want +got):\n%s", diff)
	}
}

func TestDriverModule(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"closed": {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12.2.0\n", "535.183.01"},
		"open":   {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n", "580.95.05"},
		"vendor": {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08-custom  x\n", "580.105.08-custom"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			r.write(t, "proc/driver/nvidia/version", c.text)
			if got, err := r.open().DriverModule(context.Background()); got != c.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
	r := newTree(t)
	if got, err := r.open().DriverModule(context.Background()); got != "" || err != nil {
		t.Errorf("no module: %q, %v", got, err)
	}
	r.write(t, "proc/driver/nvidia/version", "GCC version: 12.2.0\n")
	if got, err := r.open().DriverModule(context.Background()); err == nil {
		t.Errorf("a file without version gives %q", got)
	}
}

func FuzzParseMajors(f *testing.F) {
	f.Add([]byte(devices))
	f.Add([]byte("Character devices:\n99999999999 x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, major := range sysfs.ParseMajors(data) {
			if !strings.Contains(string(data), fmt.Sprint(major)) || !strings.Contains(string(data), name) {
				t.Errorf("%q has the major %d, which the text does not say", name, major)
			}
		}
	})
}

func FuzzParseDriverModule(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun\n"))
	f.Add([]byte("NVRM version:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		version, err := sysfs.ParseDriverModule(data)
		if (err == nil) != (version != "") || !strings.Contains(string(data), version) {
			t.Errorf("%q, %v", version, err)
		}
	})
}

func BenchmarkGPUs(b *testing.B) {
	r := newTree(b)
	for i := range 8 {
		r.device(b, fmt.Sprintf("0000:%02x:00.0", 0x10+i), "0x030200", "nvidia", "0")
	}
	open := r.open()
	for b.Loop() {
		if got, err := open.GPUs(context.Background()); err != nil || len(got) != 8 {
			b.Fatal(got, err)
		}
	}
}

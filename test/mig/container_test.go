package mig_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/runc"
)

// list runs nvidia-smi in a container that has the claim's devices. The links to the driver's
// libraries, which the real CDI hook makes, are made beforehand.
func (b bed) list(answer []kubelet.Device) []string {
	b.T.Helper()
	rootfs := b.T.TempDir()
	must(b.T, runc.NewRootfs(b.T.Context(), rootfs))
	library := strings.TrimPrefix(b.Node.Library(), b.Node.DriverRoot())
	link := filepath.Join(rootfs, library)
	must(b.T, os.MkdirAll(filepath.Dir(link), 0o755))
	must(b.T, os.Symlink("libnvidia-ml.so."+b.Node.Spec().Driver.Version, link))
	c := runc.Container{
		Rootfs: rootfs, Args: []string{"/usr/bin/nvidia-smi", "-L"}, SpecDirs: []string{b.CDIDir()},
		Env: []string{"LD_LIBRARY_PATH=" + filepath.Dir(library)},
	}
	for _, d := range answer {
		c.Devices = append(c.Devices, d.CDIDeviceIDs...)
	}
	slices.Sort(c.Devices)
	c.Devices = slices.Compact(c.Devices)
	result, err := runc.Run(b.T.Context(), c)
	must(b.T, err)
	if result.ExitCode != 0 {
		b.T.Fatalf("nvidia-smi ends with %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	return strings.Split(strings.TrimSpace(result.Stdout), "\n")
}

// A container sees the GPU and its own partition, and nothing of its neighbours on the GPU.
func TestContainersSeeTheirOwn(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	first, _ := b.wants("first", "1g.10gb", 1)
	second, _ := b.wants("second", "3g.40gb", 1)
	for profile, answer := range map[string][]kubelet.Device{"1g.10gb": b.prepare(first), "3g.40gb": b.prepare(second)} {
		lines := b.list(answer)
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "GPU 0:") || !strings.Contains(lines[1], "MIG "+profile) {
			t.Errorf("a container with %s sees %q", profile, lines)
		}
	}
	b.unprepare(first)
	b.unprepare(second)
	b.untouched()
}

package gpusim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
)

// container is a root directory with a libc, the driver's files as they get injected, and
// the device nodes of some GPUs. The state is mounted read-only.
type container struct {
	t     *testing.T
	root  string
	state string
	node  *gpusim.Node
}

func newContainer(t *testing.T, node *gpusim.Node, numbers ...int) *container {
	t.Helper()
	c := &container{t: t, root: t.TempDir(), node: node}
	for _, path := range libc(t, node.SMI()) {
		c.copy(path, path)
	}
	version := node.Spec().Driver.Version
	lib := filepath.Dir(strings.TrimPrefix(node.Library(), node.DriverRoot()))
	c.copy(filepath.Join(node.DriverRoot(), lib, "libnvidia-ml.so."+version), filepath.Join(lib, "libnvidia-ml.so."+version))
	do(t, os.Symlink("libnvidia-ml.so."+version, filepath.Join(c.root, lib, "libnvidia-ml.so.1")))
	c.copy(node.SMI(), "/usr/bin/nvidia-smi")
	c.state = filepath.Join(c.root, lib, filepath.Base(node.StateFile()))
	do(t, os.WriteFile(c.state, nil, 0o644))
	do(t, os.MkdirAll(filepath.Join(c.root, "dev"), 0o755))
	c.mknod("nvidiactl", 255)
	for _, number := range numbers {
		minor := node.Spec().GPUs[number].Minor
		c.mknod(fmt.Sprintf("nvidia%d", minor), minor)
	}
	return c
}

// libc lists the loader and the libraries that a program needs.
func libc(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", program).Output()
	do(t, err)
	return regexp.MustCompile(`/\S+\.so\S*`).FindAllString(string(out), -1)
}

func (c *container) copy(from, to string) {
	c.t.Helper()
	data, err := os.ReadFile(from)
	do(c.t, err)
	path := filepath.Join(c.root, to)
	do(c.t, os.MkdirAll(filepath.Dir(path), 0o755))
	do(c.t, os.WriteFile(path, data, 0o755))
}

func (c *container) mknod(name string, minor uint32) {
	c.t.Helper()
	c.mknodMajor(name, 195, minor)
}

func (c *container) mknodMajor(name string, major, minor uint32) {
	c.t.Helper()
	do(c.t, unix.Mknod(filepath.Join(c.root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))))
}

// smi runs nvidia-smi inside and returns its output and exit code.
func (c *container) smi(args ...string) (string, int) {
	c.t.Helper()
	return c.run("--mount", "/usr/bin/nvidia-smi", args...)
}

// run runs a program inside, in a further namespace beside that of mounts.
func (c *container) run(namespace, program string, args ...string) (string, int) {
	c.t.Helper()
	return outputOf(c.t, c.command(namespace, program, args...))
}

func (c *container) command(namespace, program string, args ...string) *exec.Cmd {
	c.t.Helper()
	script := `mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec chroot "$@"`
	return exec.CommandContext(c.t.Context(), "unshare", append([]string{
		"--mount", namespace, "--fork", "--kill-child", "--propagation", "private", "sh", "-ec", script, "sh",
		c.node.StateFile(), c.state, c.root, program,
	}, args...)...)
}

// outputOf runs a command that may fail and returns what it printed and its exit code.
func outputOf(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestContainerSeesItsGPUsOnly(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "two-islands")
	c := newContainer(t, node, 4, 5, 6, 7)
	out, exit := c.smi("-L")
	var want strings.Builder
	for i, uuid := range node.UUIDs()[4:] {
		fmt.Fprintf(&want, "GPU %d: NVIDIA A100-SXM4-80GB (UUID: %s)\n", i, uuid)
	}
	if diff := cmp.Diff(want.String(), out); diff != "" || exit != 0 {
		t.Errorf("nvidia-smi -L, exit %d (-want +got):\n%s", exit, diff)
	}
	out, exit = c.smi("topo", "-m")
	matrix, _, _ := strings.Cut(out, "\n\nLegend")
	wantMatrix := "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" +
		"GPU0\t X \tNV4\tNV4\tNV4\t32-63\t1\t\tN/A\n" +
		"GPU1\tNV4\t X \tNV4\tNV4\t32-63\t1\t\tN/A\n" +
		"GPU2\tNV4\tNV4\t X \tNV4\t32-63\t1\t\tN/A\n" +
		"GPU3\tNV4\tNV4\tNV4\t X \t32-63\t1\t\tN/A"
	if diff := cmp.Diff(wantMatrix, matrix); diff != "" || exit != 0 {
		t.Errorf("nvidia-smi topo -m, exit %d (-want +got):\n%s", exit, diff)
	}
}

func TestContainerAcrossIslandsShowsTheCost(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "two-islands")
	out, _ := newContainer(t, node, 2, 3, 4, 5).smi("topo", "-m")
	if got := strings.Count(out, "SYS\t"); got != 8 {
		t.Errorf("the four by number show SYS %d times, want 8:\n%s", got, out)
	}
}

func TestContainerCannotChangeModes(t *testing.T) {
	t.Parallel()
	c := newContainer(t, gpusim.New(t, "t4-4"), 1)
	out, exit := c.smi("-c", "EXCLUSIVE_PROCESS")
	if !strings.Contains(out, "Insufficient Permissions") || exit != 4 {
		t.Errorf("setting a mode in a container: exit %d, %q", exit, out)
	}
}

func TestContainerWithoutGPUs(t *testing.T) {
	t.Parallel()
	out, exit := newContainer(t, gpusim.New(t, "t4-4")).smi("-L")
	if exit != 6 || out != "No devices were found\n" {
		t.Errorf("exit %d, %q", exit, out)
	}
}

package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// v1Tree is /sys/fs/cgroup of a machine with version 1 and a version 2 without controllers.
func v1Tree(t *testing.T) Cgroups {
	t.Helper()
	root := t.TempDir()
	for _, h := range []string{"cpu,cpuacct", "cpuset", "pids", "unified"} {
		write(t, filepath.Join(root, h, "cgroup.procs"), "1\n")
	}
	write(t, filepath.Join(root, "cpuset/cpuset.cpus"), "0-3\n")
	write(t, filepath.Join(root, "cpuset/cpuset.mems"), "0\n")
	for _, link := range []string{"cpu", "cpuacct"} {
		if err := os.Symlink("cpu,cpuacct", filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return Cgroups{Root: root}
}

func TestMakeV1(t *testing.T) {
	c := v1Tree(t)
	for range 2 {
		if err := c.Make("kc-a/n0"); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []string{"cpu,cpuacct", "cpuset", "pids", "unified"} {
		if _, err := os.Stat(filepath.Join(c.Root, h, "kc-a/n0")); err != nil {
			t.Error(err)
		}
	}
	if c.V2() {
		t.Error("taken for version 2 alone")
	}
	if got := len(c.hierarchies()); got != 4 {
		t.Errorf("%d hierarchies, want 4: cpu and cpuacct are one", got)
	}
}

// In version 1 a new cpuset is empty: no process could enter it.
func TestInheritCPUs(t *testing.T) {
	parent, child := t.TempDir(), t.TempDir()
	write(t, filepath.Join(parent, "cpuset.cpus"), "0-3\n")
	write(t, filepath.Join(parent, "cpuset.mems"), "0\n")
	write(t, filepath.Join(child, "cpuset.cpus"), "\n")
	write(t, filepath.Join(child, "cpuset.mems"), "1\n")
	if err := inheritCPUs(parent, child); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(child, "cpuset.cpus")); got != "0-3\n" {
		t.Errorf("cpus are %q", got)
	}
	if got := content(t, filepath.Join(child, "cpuset.mems")); got != "1\n" {
		t.Errorf("mems that were set are now %q", got)
	}
	if err := inheritCPUs(parent, t.TempDir()); err != nil {
		t.Errorf("a hierarchy without cpuset: %v", err)
	}
}

func TestMakeV2HandsControllersDown(t *testing.T) {
	c := Cgroups{Root: t.TempDir()}
	for _, dir := range []string{"", "kc-a"} {
		write(t, filepath.Join(c.Root, dir, "cgroup.controllers"), "cpuset cpu io memory hugetlb pids rdma misc\n")
	}
	if err := c.Make("kc-a/n0"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "kc-a"} {
		got := content(t, filepath.Join(c.Root, dir, "cgroup.subtree_control"))
		if got != "+cpuset +cpu +io +memory +hugetlb +pids" {
			t.Errorf("%q hands down %q", dir, got)
		}
	}
}

func TestProcesses(t *testing.T) {
	c := v1Tree(t)
	write(t, filepath.Join(c.Root, "pids/kc-a/n0/cgroup.procs"), "12\n7\n0\n")
	write(t, filepath.Join(c.Root, "pids/kc-a/n0/pod/cgroup.procs"), "30\n")
	write(t, filepath.Join(c.Root, "unified/kc-a/n0/cgroup.procs"), "7\n")
	got, err := c.Processes("kc-a/n0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{7, 12, 30}, got); diff != "" {
		t.Error(diff)
	}
	if got, err := c.Processes("kc-none"); err != nil || len(got) != 0 {
		t.Errorf("a group that is not there: %v, %v", got, err)
	}
}

func TestRemove(t *testing.T) {
	c := v1Tree(t)
	if err := c.Make("kc-a/n0/pod"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Remove(t.Context(), "kc-a"); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(c.Root, "*/kc-a"))
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if err := c.Kill(t.Context(), "kc-a"); err != nil {
		t.Errorf("kill in a group that is gone: %v", err)
	}
}

func TestRemoveNamesWhatIsBusy(t *testing.T) {
	c := v1Tree(t)
	// A file that a real group could not have stands for a busy group.
	write(t, filepath.Join(c.Root, "pids/kc-a/file"), "")
	if err := c.Remove(t.Context(), "kc-a"); err == nil || !strings.Contains(err.Error(), "pids/kc-a") {
		t.Errorf("got %v", err)
	}
}

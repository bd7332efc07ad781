package cdi

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	library "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	driver  = "gpu.nvidia.com"
	someUID = types.UID("6fdc3a9a-58a4-4a3b-8a6b-2d6f3a1f9c01")

	procDevices = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n510 nvidia-uvm-block\n"
)

// node is a host whose device nodes are a table, so that no test has to make real ones.
type node struct {
	stats map[string]NodeStat
	proc  string
	dir   *Dir
	specs string
}

func char(major, minor uint32) NodeStat {
	return NodeStat{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: major, Minor: minor}
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{proc: t.TempDir(), specs: filepath.Join(t.TempDir(), "cdi"), stats: map[string]NodeStat{
		"nvidiactl": char(195, 255), "nvidia-uvm": char(510, 0), "nvidia-uvm-tools": char(510, 1), "nvidia-modeset": char(195, 254),
		"nvidia-caps/nvidia-cap21": char(236, 21),
	}}
	for i, name := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3"} {
		n.stats[name] = char(195, uint32(i))
	}
	n.setProc(t, procDevices)
	d, err := Open(n.specs, driver, n.host(Root{Host: "/run/nvidia/dev", Container: "/dev-mount"}))
	if err != nil {
		t.Fatal(err)
	}
	n.dir = d
	return n
}

func (n *node) setProc(t testing.TB, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.proc, "devices"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (n *node) host(dev Root) *Host {
	return &Host{Dev: dev, Proc: n.proc, Stat: func(path string) (NodeStat, error) {
		name, err := filepath.Rel(dev.Container, path)
		if err != nil {
			return NodeStat{}, err
		}
		st, ok := n.stats[name]
		if !ok {
			return NodeStat{}, &fs.PathError{Op: "lstat", Path: path, Err: fs.ErrNotExist}
		}
		return st, nil
	}}
}

// read gives a file's text, "" where there is none.
func (n *node) read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.specs, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// inject applies devices to a container as a runtime does.
func (n *node) inject(t testing.TB, ids ...string) *oci.Spec {
	t.Helper()
	cache, err := library.NewCache(library.WithSpecDirs(n.specs), library.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("the CDI library refuses the specs: %v", errs)
	}
	spec := &oci.Spec{}
	missing, err := cache.InjectDevices(spec, ids...)
	if err != nil {
		t.Fatalf("inject %v: missing %v: %v", ids, missing, err)
	}
	return spec
}

// source gives edits from a value and counts.
type source struct {
	fingerprint string
	edits       specs.ContainerEdits
	err         error
	calls       int
}

func newSource() *source {
	return &source{fingerprint: "a", edits: specs.ContainerEdits{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"},
		Mounts: []*specs.Mount{{HostPath: "/run/nvidia/driver/usr/lib64/libcuda.so.580.1", ContainerPath: "/usr/lib64/libcuda.so.580.1",
			Options: []string{"ro", "nosuid", "nodev", "rbind"}}},
		Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/opt/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}},
		// To be ignored: numbers are looked up on the host.
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidia-stale"}},
		AdditionalGIDs: []uint32{44},
	}}
}

func (s *source) Fingerprint() (string, error) { return s.fingerprint, s.err }

func (s *source) CommonEdits(context.Context) (*specs.ContainerEdits, error) {
	s.calls++
	edits := s.edits
	return &edits, nil
}

package cdi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	library "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	driver  = "gpu.nvidia.com"
	someUID = types.UID("6fdc3a9a-58a4-4a3b-8a6b-2d6f3a1f9c01")
)

var errNoProc = errors.New("no /proc")

// node is a host whose device nodes are a table, so that no test has to make real ones.
type node struct {
	stats map[string]NodeStat
	// majors is nil where the kernel cannot be asked.
	majors map[string]uint32
	dir    *Dir
	specs  string
}

func char(major, minor uint32) NodeStat {
	return NodeStat{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: major, Minor: minor}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{majors: map[string]uint32{"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-caps": 236, "nvidia-uvm": 510}, specs: filepath.Join(t.TempDir(), "cdi"), stats: map[string]NodeStat{
		"nvidiactl": char(195, 255), "nvidia-uvm": char(510, 0), "nvidia-uvm-tools": char(510, 1), "nvidia-modeset": char(195, 254),
		"nvidia-caps/nvidia-cap21": char(236, 21),
	}}
	for i, name := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3"} {
		n.stats[name] = char(195, uint32(i))
	}
	d, err := Open(n.specs, driver, n.host(Root{Host: "/run/nvidia/dev", Container: "/dev-mount"}))
	if err != nil {
		t.Fatal(err)
	}
	n.dir = d
	return n
}

// Majors is the kernel's list.
func (n *node) Majors(context.Context) (map[string]uint32, error) {
	if n.majors == nil {
		return nil, errNoProc
	}
	return n.majors, nil
}

func (n *node) host(dev Root) *Host {
	return &Host{Dev: dev, Majors: n, Stat: func(path string) (NodeStat, error) {
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
	// hang, when set, is waited for.
	hang chan struct{}
}

func newSource() *source {
	return &source{fingerprint: "a", edits: specs.ContainerEdits{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"},
		Mounts: []*specs.Mount{{
			HostPath: "/run/nvidia/driver/usr/lib64/libcuda.so.580.1", ContainerPath: "/usr/lib64/libcuda.so.580.1",
			Options: []string{"ro", "nosuid", "nodev", "rbind"},
		}},
		Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/opt/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}},
		// To be ignored: numbers are looked up on the host.
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidia-stale"}},
		AdditionalGIDs: []uint32{44},
	}}
}

func (s *source) Fingerprint() (string, error) { return s.fingerprint, s.err }

func (s *source) CommonEdits(context.Context) (*specs.ContainerEdits, error) {
	s.calls++
	if s.hang != nil {
		<-s.hang
	}
	edits := s.edits
	return &edits, nil
}

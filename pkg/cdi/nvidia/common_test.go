package nvidia

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/go-logr/logr/testr"
	library "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
)

const (
	version = "580.95.05"
	hook    = "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// driverRoot lays out what the toolkit looks for, in the library directory given.
func driverRoot(t testing.TB, libDir string) string {
	t.Helper()
	root := t.TempDir()
	for _, file := range []string{
		libDir + "/libnvidia-ml.so." + version, libDir + "/libcuda.so." + version, libDir + "/libnvidia-ptxjitcompiler.so." + version,
		"usr/bin/nvidia-smi", "lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
	} {
		path := filepath.Join(root, file)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(file), 0o755))
	}
	return root
}

func source(t testing.TB, root cdi.Root) *Source {
	t.Helper()
	lib := &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return version, nvml.SUCCESS },
		ExtensionsFunc:             func() nvml.ExtendedInterface { return nil },
	}
	return New(Config{
		DriverRoot: root, HookPath: hook, Library: nvcdi.WithNvmlLib(lib),
		DriverVersion: func() string { return version }, Logger: testr.NewWithInterface(t, testr.Options{}),
	})
}

func commonEdits(t testing.TB, root cdi.Root) *specs.ContainerEdits {
	t.Helper()
	edits, err := source(t, root).CommonEdits(t.Context())
	must(t, err)
	return edits
}

// Where the libraries lie differs by distribution.
func TestLibrariesAreFoundInEveryLayout(t *testing.T) {
	for _, libDir := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu", "lib64"} {
		t.Run(libDir, func(t *testing.T) {
			root := driverRoot(t, libDir)
			edits := commonEdits(t, cdi.Root{Host: "/run/nvidia/driver", Container: root})
			mounts := map[string]string{}
			for _, m := range edits.Mounts {
				mounts[m.ContainerPath] = m.HostPath
			}
			for _, path := range []string{
				"/" + libDir + "/libcuda.so." + version, "/" + libDir + "/libnvidia-ml.so." + version, "/usr/bin/nvidia-smi",
				"/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
			} {
				if mounts[path] != "/run/nvidia/driver"+path {
					t.Errorf("%s is mounted from %q; mounts: %v", path, mounts[path], mounts)
				}
			}
		})
	}
}

func TestEditsAreInTheHostsView(t *testing.T) {
	root := driverRoot(t, "usr/lib64")
	for _, host := range []string{"/", "/run/nvidia/driver", root} {
		edits := commonEdits(t, cdi.Root{Host: host, Container: root})
		if len(edits.DeviceNodes) != 0 {
			t.Errorf("device nodes %v", edits.DeviceNodes)
		}
		for _, m := range edits.Mounts {
			if host != root && strings.HasPrefix(m.HostPath, root) {
				t.Errorf("mount %v is in the plugin's view", m)
			}
		}
		if len(edits.Hooks) == 0 {
			t.Error("no hooks")
		}
		for _, h := range edits.Hooks {
			if h.Path != hook || slices.Contains(h.Args, hooksLeftOut) {
				t.Errorf("hook %+v", h)
			}
			for _, arg := range h.Args {
				if host != root && strings.Contains(arg, root) {
					t.Errorf("hook argument %s is in the plugin's view", arg)
				}
			}
		}
		full := &library.ContainerEdits{ContainerEdits: edits}
		if err := full.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestNoDriver(t *testing.T) {
	s := source(t, cdi.Root{Host: "/", Container: t.TempDir()})
	if edits, err := s.CommonEdits(t.Context()); err == nil {
		t.Errorf("an empty driver root gives %v", edits)
	}
}

func fingerprint(t testing.TB, s *Source) string {
	t.Helper()
	sum, err := s.Fingerprint()
	must(t, err)
	return sum
}

func TestFingerprintFollowsTheDriver(t *testing.T) {
	tests := []struct {
		name    string
		change  func(t *testing.T, s *Source, root string)
		differs bool
	}{
		{"nothing", func(*testing.T, *Source, string) {}, false},
		{"a new library", func(t *testing.T, _ *Source, root string) {
			must(t, os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-new.so.1"), nil, 0o600))
		}, true},
		{"a library gone", func(t *testing.T, _ *Source, root string) {
			must(t, os.Remove(filepath.Join(root, "usr/lib64/libcuda.so."+version)))
		}, true},
		{"another version", func(_ *testing.T, s *Source, _ string) { s.config.DriverVersion = func() string { return "1" } }, true},
		{"another hook", func(_ *testing.T, s *Source, _ string) { s.config.HookPath = "/x" }, true},
		{"another root on the host", func(_ *testing.T, s *Source, _ string) { s.config.DriverRoot.Host = "/x" }, true},
		{"a socket appears", func(t *testing.T, _ *Source, root string) {
			must(t, os.MkdirAll(filepath.Join(root, "run/nvidia-persistenced/socket"), 0o700))
		}, true},
		// Anybody can make it, so it is not mounted.
		{"an MPS directory appears", func(t *testing.T, _ *Source, root string) {
			must(t, os.MkdirAll(filepath.Join(root, "tmp/nvidia-mps"), 0o700))
		}, false},
		{"a link to itself appears", func(t *testing.T, _ *Source, root string) {
			must(t, os.MkdirAll(filepath.Join(root, "etc"), 0o700))
			must(t, os.Symlink("ld.so.cache", filepath.Join(root, "etc/ld.so.cache")))
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := driverRoot(t, "usr/lib64")
			// So that a change within the clock's tick shows.
			past := time.Now().Add(-time.Hour)
			must(t, os.Chtimes(filepath.Join(root, "usr/lib64"), past, past))
			s := source(t, cdi.Root{Host: "/", Container: root})
			before := fingerprint(t, s)
			tt.change(t, s, root)
			if differs := fingerprint(t, s) != before; differs != tt.differs {
				t.Errorf("differs = %t", differs)
			}
		})
	}
}

// What cannot be looked at is part of the fingerprint: it must not end every prepare.
func TestFingerprintOfAFileAsRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := source(t, cdi.Root{Host: "/", Container: file}).Fingerprint(); err != nil {
		t.Errorf("a file as driver root: %v", err)
	}
}

func TestTheMPSDirectoryOfTheHostIsNotMounted(t *testing.T) {
	mounts := []*specs.Mount{{HostPath: "/run/nvidia/driver/tmp/nvidia-mps"}, {HostPath: "/usr/bin/nvidia-smi"}, {HostPath: "/tmp/nvidia-mps"}}
	if got := withoutMPS(mounts); len(got) != 1 || got[0].HostPath != "/usr/bin/nvidia-smi" {
		t.Errorf("%d mounts stay", len(got))
	}
}

func BenchmarkFingerprint(b *testing.B) {
	s := source(b, cdi.Root{Host: "/", Container: driverRoot(b, "usr/lib64")})
	for b.Loop() {
		fingerprint(b, s)
	}
}

func BenchmarkCommonEdits(b *testing.B) {
	root := cdi.Root{Host: "/", Container: driverRoot(b, "usr/lib64")}
	for b.Loop() {
		commonEdits(b, root)
	}
}

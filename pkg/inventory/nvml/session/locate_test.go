package session_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/test/gpusim"
)

// touch makes a file below a root.
func touch(t *testing.T, root, name string) string {
	t.Helper()
	file := filepath.Join(root, name)
	do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	do(t, os.WriteFile(file, []byte("ELF"), 0o644))
	return file
}

func link(t *testing.T, target, root, name string) {
	t.Helper()
	do(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
	do(t, os.Symlink(target, filepath.Join(root, name)))
}

// Each layout is that of a distribution or installer; links lead as they do there.
func TestLocate(t *testing.T) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	for name, c := range map[string]struct{ file, link, target string }{
		"Fedora, driver container": {"usr/lib64/libnvidia-ml.so.580.95.05", "usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"},
		"Ubuntu":                   {"usr/lib/" + triplet + "/libnvidia-ml.so.580.95.05", "usr/lib/" + triplet + "/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"},
		"Debian, absolute link": {
			"usr/lib/" + triplet + "/nvidia/current/libnvidia-ml.so.1", "usr/lib/" + triplet + "/libnvidia-ml.so.1",
			"/usr/lib/" + triplet + "/nvidia/current/libnvidia-ml.so.1",
		},
		"merged /usr": {"usr/lib64/libnvidia-ml.so.1", "lib64", "usr/lib64"},
		"Arch":        {"usr/lib/libnvidia-ml.so.580.95.05", "usr/lib/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"},
		"Talos":       {"usr/local/glibc/usr/lib/libnvidia-ml.so.580.95.05", "usr/local/glibc/usr/lib/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"},
		"GKE":         {"home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.580.95.05", "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"},
		"NixOS":       {"nix/store/x/lib/libnvidia-ml.so.580.95.05", "run/opengl-driver/lib/libnvidia-ml.so.1", "/nix/store/x/lib/libnvidia-ml.so.580.95.05"},
		"Flatcar":     {"opt/nvidia/lib64/libnvidia-ml.so.580.95.05", "opt/nvidia/lib64/libnvidia-ml.so.1", "./libnvidia-ml.so.580.95.05"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			want := touch(t, root, c.file)
			link(t, c.target, root, c.link)
			if got, err := session.Locate(root); got != want || err != nil {
				t.Errorf("found %q, %v, want %q", got, err, want)
			}
		})
	}
}

func TestLocateStaysBelowItsRoot(t *testing.T) {
	outside := touch(t, t.TempDir(), "libnvidia-ml.so.1")
	root := t.TempDir()
	link(t, outside, root, "usr/lib64/libnvidia-ml.so.1")
	do(t, os.MkdirAll(filepath.Join(root, "lib64/libnvidia-ml.so.1"), 0o755))
	link(t, "libnvidia-ml.so.1", root, "usr/lib/libnvidia-ml.so.1")
	got, err := session.Locate(root)
	var missing *session.NotFoundError
	if got != "" || !errors.As(err, &missing) || missing.Root != root {
		t.Fatalf("found %q, %v", got, err)
	}
	for _, text := range []string{root, "usr/lib64", "usr/local/glibc/usr/lib"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say that %s was searched", err, text)
		}
	}
}

// Files that are no driver library are refused before a call could end the process.
func TestLibrariesThatCannotBeUsed(t *testing.T) {
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	do(t, err)
	for name, c := range map[string]struct{ path, text string }{
		"no ELF file":     {touch(t, t.TempDir(), "libnvidia-ml.so.1"), "cannot be used"},
		"another library": {built.Stub, "no NVML or too old"},
	} {
		t.Run(name, func(t *testing.T) {
			err := session.New(session.Options{Path: c.path, Required: []string{symCount}}).Use(t.Context(), "test", nothing)
			var unusable *session.UnusableError
			if !errors.As(err, &unusable) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("error is %v", err)
			}
		})
	}
	if err := session.New(session.Options{Path: "/nowhere/libnvidia-ml.so.1"}).Use(t.Context(), "test", nothing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	if err := session.New(session.Options{}).Close(t.Context()); err != nil {
		t.Errorf("closing what was never opened: %v", err)
	}
}

package walkthrough

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMissingPackages(t *testing.T) {
	look := func(have ...string) func(string) (string, error) {
		return func(command string) (string, error) {
			for _, h := range have {
				if h == command {
					return "/usr/bin/" + h, nil
				}
			}
			return "", errors.New("not found")
		}
	}
	for name, tc := range map[string]struct {
		have []string
		want []string
	}{
		"all there": {[]string{"gcc", "runc", "busybox"}, nil},
		"no runc":   {[]string{"gcc", "busybox"}, []string{"runc"}},
		"none":      {nil, []string{"gcc", "libc6-dev", "runc", "busybox-static"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, missingPackages(tools(), look(tc.have...))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// fakePrograms makes PATH hold only shell scripts with the given texts.
func fakePrograms(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

func TestMissingToolsAreInstalledOrNamed(t *testing.T) {
	there := map[string]string{"gcc": "", "busybox": ""}
	for name, tc := range map[string]struct {
		aptGet  string
		install bool
		want    string
	}{
		"installed":     {`echo "$@" >> "$0.log"`, true, ""},
		"not wanted":    {`exit 0`, false, "apt-get install runc"},
		"install fails": {`[ $1 = update ] || { echo no such package; exit 1; }`, true, "no such package"},
		"no apt-get":    {"", true, "apt-get install runc"},
	} {
		t.Run(name, func(t *testing.T) {
			scripts := map[string]string{"gcc": there["gcc"], "busybox": there["busybox"]}
			if tc.aptGet != "" {
				scripts["apt-get"] = tc.aptGet
			}
			dir := fakePrograms(t, scripts)
			var out bytes.Buffer
			err := provideTools(t.Context(), newScreen(&out, false), tc.install)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				return
			}
			log, readErr := os.ReadFile(filepath.Join(dir, "apt-get.log"))
			want := "update --quiet\ninstall --yes --no-install-recommends runc\n"
			if err != nil || readErr != nil || string(log) != want || !strings.Contains(out.String(), "packages: runc") {
				t.Errorf("%v, %v, apt-get was called with %q, shown %q", err, readErr, log, out.String())
			}
		})
	}
}

func TestSourceTree(t *testing.T) {
	dir, err := sourceTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "deployments/container/build-binaries.sh")); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if dir, err := sourceTree(t.Context()); err == nil || !strings.Contains(err.Error(), "clone of the repository") {
		t.Errorf("outside: %q, %v", dir, err)
	}
}

func TestFailedBuildShowsItsEnd(t *testing.T) {
	source := t.TempDir()
	script := filepath.Join(source, "deployments/container/build-binaries.sh")
	if err := os.MkdirAll(filepath.Dir(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("echo to $OUT; echo undefined: x >&2; exit 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := build(t.Context(), newScreen(&bytes.Buffer{}, false), source)
	var problem *Problem
	if !errors.As(err, &problem) {
		t.Fatalf("%v", err)
	}
	if diff := cmp.Diff([]string{"to " + filepath.Join(source, "bin/demo"), "undefined: x"}, problem.Log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLockIsForOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("the second got %v", err)
	}
	unlock()
	again, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
	if _, err := lock(t.Context(), "/absent/lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestWorkDirTakesTheFirstThatWillDo(t *testing.T) {
	good, bad := t.TempDir(), "/bad"
	usable := func(dir string) error {
		if dir == bad {
			return errors.New("bad is not good")
		}
		return nil
	}
	dir, err := workDir([]string{bad, "/absent/place", good, "/tmp"}, usable)
	if err != nil || filepath.Dir(dir) != good {
		t.Errorf("%q, %v", dir, err)
	}
	if _, err := workDir([]string{bad, "/absent/place"}, usable); err == nil || !strings.Contains(err.Error(), "bad is not good") || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("%v", err)
	}
}

func TestUsableBase(t *testing.T) {
	if err := usableBase("/var/tmp"); err != nil {
		t.Error(err)
	}
	noexec, err := os.MkdirTemp("/tmp", "noexec-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", noexec, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(noexec, 0), os.Remove(noexec)); err != nil {
			t.Error(err)
		}
	})
	for dir, want := range map[string]string{noexec: "noexec", "/absent": "no such file", "/" + strings.Repeat("x", maxBase): "longer"} {
		if err := usableBase(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
}

// TestSocketPathsFit holds maxBase against the longest socket of the walk.
func TestSocketPathsFit(t *testing.T) {
	const longest, random = 107, "gpu-demo-4294967295"
	w := &walk{dir: filepath.Join("/"+strings.Repeat("x", maxBase-1), random)}
	for _, socket := range []string{filepath.Join(w.dataDir(), "dra.sock"), w.path("kubelet", "registry", driverName+"-reg.sock")} {
		if len(socket) > longest {
			t.Errorf("%s has %d bytes", socket, len(socket))
		}
	}
}

package driverroot_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/driverroot"
)

func touch(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// The first directory of the list wins, links lead below the root, and what is no file is passed
// over.
func TestFind(t *testing.T) {
	root := t.TempDir()
	touch(t, root, "opt/nvidia/bin/nvidia-smi")
	want := touch(t, root, "usr/lib/nvidia/current/nvidia-smi")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin/nvidia-smi"), 0o755), os.MkdirAll(filepath.Join(root, "bin"), 0o755),
		os.Symlink("/usr/lib/nvidia/current/nvidia-smi", filepath.Join(root, "bin/nvidia-smi"))); err != nil {
		t.Fatal(err)
	}
	got, err := driverroot.Find(root, driverroot.ProgramDirs(), "nvidia-smi")
	if got != want || err != nil {
		t.Errorf("found %q, %v, want %q", got, err, want)
	}
}

func TestFindStaysBelowItsRoot(t *testing.T) {
	outside := touch(t, t.TempDir(), "nvidia-smi")
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.Symlink(outside, filepath.Join(root, "usr/bin/nvidia-smi"))); err != nil {
		t.Fatal(err)
	}
	got, err := driverroot.Find(root, driverroot.ProgramDirs(), "nvidia-smi")
	var missing *driverroot.NotFoundError
	if got != "" || !errors.As(err, &missing) || missing.Name != "nvidia-smi" || missing.Root != root {
		t.Fatalf("found %q, %v", got, err)
	}
	for _, dir := range driverroot.ProgramDirs() {
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("%q does not say that %s was searched", err, dir)
		}
	}
}

func TestDirsAreRelativeAndDifferent(t *testing.T) {
	for _, dirs := range [][]string{driverroot.LibraryDirs(), driverroot.ProgramDirs()} {
		sorted := slices.Sorted(slices.Values(dirs))
		if len(slices.Compact(sorted)) != len(dirs) {
			t.Errorf("one is listed twice: %v", dirs)
		}
		for _, dir := range dirs {
			if !filepath.IsLocal(dir) {
				t.Errorf("%q leads out of the root", dir)
			}
		}
	}
}

package mps_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// used makes a directory as daemons and plugin leave it.
func used(t *testing.T, files ...string) mps.Layout {
	t.Helper()
	l := mps.Layout(filepath.Join(t.TempDir(), mps.DirName))
	for _, f := range append(files, "daemons/gpu/pipe/control", "daemons/gpu/spec.json", "supervisor.sock") {
		path := filepath.Join(string(l), f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// The directory goes when nobody needs it: neither daemons that may live nor a compute mode that
// is still to be put back.
func TestRemove(t *testing.T) {
	alive := used(t, "life.lock")
	f, err := os.OpenFile(alive.LifeLock(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		layout mps.Layout
		want   bool
	}{
		"daemons may live":    {alive, false},
		"a mode to put back":  {used(t, "life.lock", "devices/gpu.json"), false},
		"the container ended": {used(t, "life.lock", "devices/.gpu.json.new"), true},
		"it never was there":  {used(t), true},
		"nothing is there":    {mps.Layout(filepath.Join(t.TempDir(), "none")), true},
	} {
		removed, err := c.layout.Remove()
		_, statErr := os.Lstat(string(c.layout))
		if err != nil || removed != c.want || errors.Is(statErr, fs.ErrNotExist) != c.want {
			t.Errorf("%s: removed %t, %v; then %v", name, removed, err, statErr)
		}
	}
	if living, err := alive.Alive(); err != nil || !living {
		t.Errorf("the lock is held, and daemons live: %t, %v", living, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if removed, err := alive.Remove(); err != nil || !removed {
		t.Errorf("after the container's end: %t, %v", removed, err)
	}
	// NVIDIA's driver has its daemons in the same place.
	theirs := used(t, "life.lock", "claim-12345/shm/live")
	if removed, err := theirs.Remove(); err != nil || !removed {
		t.Errorf("beside another driver's daemons: %t, %v", removed, err)
	}
	if left, err := os.ReadDir(string(theirs)); err != nil || len(left) != 1 {
		t.Errorf("left beside another driver's daemons: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(string(theirs), "claim-12345", "shm", "live")); err != nil {
		t.Error(err)
	}
	if removed, err := mps.Layout("/proc/self/stat/mps").Remove(); err == nil || removed {
		t.Errorf("where nothing can be: %t, %v", removed, err)
	}
}

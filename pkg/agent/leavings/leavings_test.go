package leavings

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestStaleSocketsAreRemoved(t *testing.T) {
	root := t.TempDir()
	d := Dirs{Driver: "gpu.nvidia.com", Data: filepath.Join(root, "p", "gpu.nvidia.com"), Registry: filepath.Join(root, "r")}
	for _, dir := range []string{d.Data, d.Registry} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-time.Hour)
	tests := []struct {
		name   string
		path   string
		listen bool
		at     time.Time
		// stays tells that it is left to another instance, lives that it is left at the end, too.
		stays, lives bool
	}{
		{"killed, DRA", filepath.Join(d.Data, "dra-1.sock"), false, long, false, false},
		{"killed, registration", filepath.Join(d.Registry, "gpu.nvidia.com-1-reg.sock"), false, long, false, false},
		{"alive", filepath.Join(d.Data, "dra-2.sock"), true, long, true, true},
		{"alive, registration", filepath.Join(d.Registry, "gpu.nvidia.com-2-reg.sock"), true, long, true, true},
		{"not listening yet", filepath.Join(d.Data, "dra-3.sock"), false, time.Now(), true, false},
		{"another driver's", filepath.Join(d.Registry, "other-reg.sock"), false, long, true, true},
		{"not the library's", filepath.Join(d.Data, "x.sock"), false, long, true, true},
	}
	for _, tc := range tests {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tc.path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if tc.listen {
			defer func() { _ = l.Close() }()
		} else {
			_ = l.Close()
		}
		if err := os.Chtimes(tc.path, tc.at, tc.at); err != nil {
			t.Fatal(err)
		}
	}
	d.RemoveStaleSockets(t.Context())
	for _, tc := range tests {
		if _, err := os.Lstat(tc.path); (err == nil) != tc.stays {
			t.Errorf("%s: there afterwards is %t, want %t", tc.name, err == nil, tc.stays)
		}
	}
	d.RemoveDeadSockets(t.Context())
	for _, tc := range tests {
		if _, err := os.Lstat(tc.path); (err == nil) != tc.lives {
			t.Errorf("%s: there at the end is %t, want %t", tc.name, err == nil, tc.lives)
		}
	}
}

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	d := Dirs{Data: t.TempDir()}
	old := time.Now().Add(-time.Hour)
	files := map[string]struct {
		at    time.Time
		stays bool
	}{
		".nvidia-cdi-hook123": {old, false},
		".nvlink.json456":     {old, false},
		".nvidia-cdi-hook789": {time.Now(), true},
		"nvidia-cdi-hook":     {old, true},
		"nvlink.json":         {old, true},
		".foreign":            {old, true},
	}
	for name, f := range files {
		path := filepath.Join(d.Data, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, f.at, f.at); err != nil {
			t.Fatal(err)
		}
	}
	d.RemoveTemps(t.Context(), "nvidia-cdi-hook", "nvlink.json")
	for name, f := range files {
		if _, err := os.Stat(filepath.Join(d.Data, name)); (err == nil) != f.stays {
			t.Errorf("%s is there: %t, want %t", name, err == nil, f.stays)
		}
	}
}

package agent

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/config"
)

func TestStaleSocketsAreRemoved(t *testing.T) {
	root := t.TempDir()
	a := &Agent{config: &config.Config{
		DriverName: "gpu.nvidia.com", KubeletPluginsDir: filepath.Join(root, "p"), KubeletRegistryDir: filepath.Join(root, "r"),
	}}
	for _, dir := range []string{a.config.DataDir(), a.config.KubeletRegistryDir} {
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
		stays  bool
	}{
		{"killed, DRA", filepath.Join(a.config.DataDir(), "dra-1.sock"), false, long, false},
		{"killed, registration", filepath.Join(a.config.KubeletRegistryDir, "gpu.nvidia.com-1-reg.sock"), false, long, false},
		{"alive", filepath.Join(a.config.DataDir(), "dra-2.sock"), true, long, true},
		{"alive, registration", filepath.Join(a.config.KubeletRegistryDir, "gpu.nvidia.com-2-reg.sock"), true, long, true},
		{"not listening yet", filepath.Join(a.config.DataDir(), "dra-3.sock"), false, time.Now(), true},
		{"another driver's", filepath.Join(a.config.KubeletRegistryDir, "other-reg.sock"), false, long, true},
		{"not the library's", filepath.Join(a.config.DataDir(), "x.sock"), false, long, true},
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
	a.removeStaleSockets(t.Context())
	for _, tc := range tests {
		if _, err := os.Lstat(tc.path); (err == nil) != tc.stays {
			t.Errorf("%s: there afterwards is %t, want %t", tc.name, err == nil, tc.stays)
		}
	}
}

package agent

import (
	"os"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/config"
)

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	a := &Agent{config: &config.Config{DriverName: "d", KubeletPluginsDir: t.TempDir(), CDIHook: "/usr/bin/nvidia-cdi-hook"}}
	if err := os.Mkdir(a.config.DataDir(), 0o755); err != nil {
		t.Fatal(err)
	}
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
		write(t, a.stateDir(name), nil, 0o600)
		if err := os.Chtimes(a.stateDir(name), f.at, f.at); err != nil {
			t.Fatal(err)
		}
	}
	a.removeTemps(t.Context())
	for name, f := range files {
		if _, err := os.Stat(a.stateDir(name)); (err == nil) != f.stays {
			t.Errorf("%s is there: %t, want %t", name, err == nil, f.stays)
		}
	}
}

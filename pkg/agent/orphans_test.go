package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/journal"
)

func TestSpecsWithoutARecordAreRemoved(t *testing.T) {
	dir := t.TempDir()
	specs, err := cdi.Open(dir, "gpu.nvidia.com", &cdi.Host{})
	if err != nil {
		t.Fatal(err)
	}
	records, err := journal.Open(filepath.Join(t.TempDir(), "claims"))
	if err != nil {
		t.Fatal(err)
	}
	const known, gone, bad = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222", "33333333-3333-3333-3333-333333333333"
	if err := records.Save(&journal.Record{UID: known, State: journal.StatePrepared}); err != nil {
		t.Fatal(err)
	}
	// A record that cannot be read is a record.
	write(t, records.Path(bad), []byte("torn"), 0o600)
	files := map[string]bool{
		"gpu.nvidia.com-claim_" + known + ".json":            true,
		"gpu.nvidia.com-claim_" + gone + ".json":             false,
		"gpu.nvidia.com-claim_" + bad + ".json":              true,
		"gpu.nvidia.com_metadata_" + known + "_gpus.json":    true,
		"gpu.nvidia.com_metadata_" + gone + "_gpus.json":     false,
		"gpu.nvidia.com_metadata_" + gone + "_with_bar.json": false,
		"gpu.nvidia.com_metadata_" + bad + "_gpus.json":      true,
		"gpu.nvidia.com-driver.json":                         true,
		"other.example.com_metadata_" + gone + "_gpus.json":  true,
		"other.example.com-claim_" + gone + ".json":          true,
		"gpu.nvidia.com_metadata_" + gone + "_x.yaml":        true,
	}
	for name := range files {
		write(t, filepath.Join(dir, name), []byte("{}"), 0o644)
	}
	a := &Agent{config: &config.Config{DriverName: "gpu.nvidia.com", CDIDir: dir}, specs: specs, journal: records}
	a.removeOrphans(t.Context())
	for name, stays := range files {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != stays {
			t.Errorf("%s is there: %t, want %t", name, err == nil, stays)
		}
	}
}

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

package metadata

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/topology"
)

// Containers are told what is published, and the numbers that are too unstable for that.
func TestMetadata(t *testing.T) {
	s := inventorytest.HGXH100()
	s.GPUs[2].Index, s.GPUs[2].Minor = 5, 6
	assignment, _ := topology.Resolve(s, topology.Memory{})
	known := map[string]device.Device{}
	for _, d := range device.FromSnapshot(s, assignment) {
		known[d.Name()] = d
	}
	name := device.GPUName(s.GPUs[2].PCI)
	tell := Of(func(name string) (device.Device, bool) { d, ok := known[name]; return d, ok })
	got := tell(prepare.Prepared{Device: name})
	if *got.Attributes["index"].IntValue != 5 || *got.Attributes["minor"].IntValue != 6 || *got.Attributes["uuid"].StringValue != s.GPUs[2].UUID {
		t.Errorf("%+v", got)
	}
	published, _ := known[name].Publish(device.VocabularyFull)
	if len(got.Attributes) != len(published.Attributes)+2 {
		t.Errorf("%d attributes, %d are published", len(got.Attributes), len(published.Attributes))
	}
	if got := tell(prepare.Prepared{Device: "gone"}); got != nil {
		t.Errorf("a device that is not there: %+v", got)
	}
	if n := len(Options("gpu.nvidia.com")); n != 2 {
		t.Errorf("%d options", n)
	}
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "spec.json")
	for _, content := range []string{"first", "second, longer", ""} {
		if err := replaceFile("gpu.nvidia.com", path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	if err := replaceFile("gpu.nvidia.com", filepath.Join(dir, "none", "spec.json"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	// A directory cannot be replaced, and what was written for it goes.
	if err := os.Mkdir(filepath.Join(dir, "taken.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile("gpu.nvidia.com", filepath.Join(dir, "taken.json"), []byte("x"), 0o644); err == nil {
		t.Error("a directory was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/config"
)

func TestBootID(t *testing.T) {
	proc := t.TempDir()
	own, err := bootID(proc)
	if err != nil || own == "" || strings.TrimSpace(own) != own {
		t.Errorf("without one below the given root: %q, %v", own, err)
	}
	dir := filepath.Join(proc, "sys/kernel/random")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "boot_id"), []byte("a-boot\n"), 0o444)
	if got, err := bootID(proc); err != nil || got != "a-boot" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Remove(filepath.Join(dir, "boot_id")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "boot_id"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := bootID(proc); err == nil {
		t.Errorf("a directory is the id %q", got)
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

func TestSocket(t *testing.T) {
	c := config.Default()
	a := &Agent{config: c}
	if got := a.socket(); got != "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock" {
		t.Error(got)
	}
	c.PodUID = "pod"
	if got := a.socket(); got != "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-pod.sock" {
		t.Error(got)
	}
}

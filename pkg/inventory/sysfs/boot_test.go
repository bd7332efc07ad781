package sysfs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
)

func TestBootID(t *testing.T) {
	proc := t.TempDir()
	own, err := sysfs.BootID(proc)
	if err != nil || own == "" || strings.TrimSpace(own) != own {
		t.Errorf("without one below the given root: %q, %v", own, err)
	}
	dir := filepath.Join(proc, "sys/kernel/random")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte("a-boot\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	if got, err := sysfs.BootID(proc); err != nil || got != "a-boot" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Remove(filepath.Join(dir, "boot_id")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "boot_id"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := sysfs.BootID(proc); err == nil {
		t.Errorf("a directory is the id %q", got)
	}
}

package agent

import (
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

package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BootID reads the kernel's id of this boot. It is not part of the simulated or mounted /proc
// of every node, so the process's own is taken where the given tree has none.
func BootID(procRoot string) (string, error) {
	const name = "sys/kernel/random/boot_id"
	text, err := os.ReadFile(filepath.Join(procRoot, name))
	if os.IsNotExist(err) {
		text, err = os.ReadFile(filepath.Join("/proc", name))
	}
	if err != nil {
		return "", fmt.Errorf("boot id of the kernel: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

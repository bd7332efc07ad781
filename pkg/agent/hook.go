package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// installHook copies the CDI hook binary from this process's image to the plugin's directory,
// where the container runtime finds and runs it, and returns that path. The copy replaces the
// old one in one step: a container that starts meanwhile runs one or the other, never a half.
func installHook(source, dataDir string) (string, error) {
	target := filepath.Join(dataDir, filepath.Base(source))
	content, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("read the CDI hook (--cdi-hook): %w", err)
	}
	if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, content) {
		if err := os.Chmod(target, 0o755); err != nil {
			return "", fmt.Errorf("make the CDI hook executable: %w", err)
		}
		return target, nil
	}
	if err := renameio.WriteFile(target, content, 0o755, renameio.IgnoreUmask()); err != nil {
		return "", fmt.Errorf("copy the CDI hook to %s: %w", target, err)
	}
	return target, nil
}

package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BinaryVariable names the plugin's executable for every Bed of the process.
const BinaryVariable = "PROCESS_PLUGIN"

// Build makes the plugin's executable in dir and points BinaryVariable at it, unless that names
// one already. The flags are added to those that every build needs.
func Build(ctx context.Context, dir string, flags ...string) error {
	if os.Getenv(BinaryVariable) != "" {
		return nil
	}
	path := filepath.Join(dir, "gpu-kubelet-plugin")
	// As the image is built: NVML's symbols are bound when they are first called, since the
	// driver's library is opened at run time.
	args := append([]string{"build", "-tags=grpcnotrace", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/gpu-dra/driver/cmd/gpu-kubelet-plugin")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the plugin: %w\n%s", err, out)
	}
	return os.Setenv(BinaryVariable, path)
}

package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Build makes the programs of the driver's image from the source tree, as the image is built.
func Build(ctx context.Context, source, out string) (Programs, error) {
	cmd := exec.CommandContext(ctx, "sh", filepath.Join(source, "deployments/container/build-binaries.sh"))
	cmd.Dir, cmd.Env = source, append(os.Environ(), "OUT="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build the plugin: %w\n%s", err, text)
	}
	return Programs{Plugin: filepath.Join(out, "gpu-kubelet-plugin"), Hook: filepath.Join(out, "nvidia-cdi-hook")}, nil
}

// Cold copies a program to a file that is not in the page cache. A file just written lies there in large
// pieces, of which a process maps more than it needs: a program that a node starts was read from its disk.
func Cold(program, to string) (err error) {
	in, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("copy program: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("copy program: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy program: %w", err)
	}
	// Only pages that are on disk can leave the cache.
	if err := out.Sync(); err != nil {
		return fmt.Errorf("copy program: %w", err)
	}
	if err := unix.Fadvise(int(out.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop %s from the page cache: %w", to, err)
	}
	return nil
}

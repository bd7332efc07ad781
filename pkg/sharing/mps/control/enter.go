package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// EnterCommand is the sub-command of this program that calls Enter.
const EnterCommand = "enter"

// clientLogDir is where a daemon sees the directory of its logs.
const clientLogDir = "/tmp/nvidia-mps-log"

// EnterArgs are the arguments of this program that run another in a daemon's view.
func EnterArgs(dir mps.DaemonDir, program string) []string {
	return []string{EnterCommand, string(dir), program}
}

// Enter becomes a program of the driver in the view of the file system that a daemon and its
// clients share. This process must have a mount namespace of its own. args are those of EnterArgs
// after the first, and the program's own. It returns only with an error.
func Enter(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s takes the directory of a daemon, a program and its arguments", EnterCommand)
	}
	dir := mps.DaemonDir(args[0])
	// Nothing of this must show outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("leave the mounts of the container alone: %w", err)
	}
	for source, target := range map[string]string{
		dir.Pipe(): mps.ClientPipeDir, dir.Log(): clientLogDir, dir.Shm(): mps.ClientShmDir,
	} {
		// The container has a /tmp of its own to make them in.
		if err := os.MkdirAll(target, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("place of %s: %w", source, err)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s at %s: %w", source, target, err)
		}
	}
	return syscall.Exec(args[1], args[1:], os.Environ()) //nolint:gosec // there are two at least
}

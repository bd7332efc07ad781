// Package mpsdaemon makes a driver root with a small stand-in for the GPU driver's MPS control
// daemon, for tests of what starts, commands and ends it.
package mpsdaemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program is the name of the control daemon and its front end.
const Program = "nvidia-cuda-mps-control"

// Fault is how a stand-in misbehaves.
type Fault string

// The faults.
const (
	// FailsToStart has the daemon end with an error.
	FailsToStart Fault = "fails-to-start"
	// NeverAnswers has the daemon listen and answer nothing.
	NeverAnswers Fault = "never-answers"
	// IgnoresLimits has the daemon take limits and not keep them.
	IgnoresLimits Fault = "ignores-limits"
	// WillNotQuit has the daemon go on after quit.
	WillNotQuit Fault = "will-not-quit"
)

// DriverRoot makes one in dir, which must not be below /tmp or /dev/shm: a daemon sees others
// there. With faults they are in force at once.
func DriverRoot(ctx context.Context, dir string, faults ...Fault) error {
	bin, lib := filepath.Join(dir, "usr/bin"), filepath.Join(dir, "usr/lib64")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.MkdirAll(lib, 0o755), os.WriteFile(filepath.Join(lib, "libcuda.so.1"), nil, 0o644)); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(bin, Program), "github.com/gpu-dra/driver/test/mpsdaemon/fakemps")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in of the control daemon: %w: %s", err, out)
	}
	return SetFaults(dir, faults...)
}

// SetFaults replaces the faults of a driver root.
func SetFaults(dir string, faults ...Fault) error {
	for _, f := range []Fault{FailsToStart, NeverAnswers, IgnoresLimits, WillNotQuit} {
		if err := os.RemoveAll(filepath.Join(dir, string(f))); err != nil {
			return err
		}
	}
	for _, f := range faults {
		if err := os.WriteFile(filepath.Join(dir, string(f)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

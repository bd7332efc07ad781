// Package smi runs the nvidia-smi of a driver root, for the few things that NVML has no call for. It
// must not know what they are for.
package smi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gpu-dra/driver/pkg/driverroot"
)

// What errors of Run wrap, where they are such.
var (
	// ErrNotSupported: the GPU or the driver cannot do it.
	ErrNotSupported = errors.New("not supported")
	// ErrGone: the GPU is lost or not there.
	ErrGone = errors.New("the GPU does not answer or is not there")
	// ErrNoTool: the driver root lacks nvidia-smi or NVML: the driver was removed or is incomplete.
	ErrNoTool = errors.New("nvidia-smi cannot be run")
)

// Exit codes of nvidia-smi, from the section "Return value" of its manual.
const (
	exitNotSupported   = 3
	exitNotFound       = 6
	exitNoDriver       = 9
	exitNoLibrary      = 12
	exitNotImplemented = 13
	exitLost           = 15
)

// Tool is the nvidia-smi of a driver root.
type Tool struct {
	// Root is the driver root as this process sees it.
	Root string
}

// Run runs the tool with arguments until it ends, the context does, or the limit is over: it is
// killed then. Errors wrap ErrNotSupported, ErrGone or ErrNoTool where they are such, and have the
// tool's words.
func (t Tool) Run(ctx context.Context, limit time.Duration, args ...string) error {
	tool, err := driverroot.Find(t.Root, driverroot.ProgramDirs(), "nvidia-smi")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	library, err := driverroot.Find(t.Root, driverroot.LibraryDirs(), "libnvidia-ml.so.1")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	// The tool opens NVML by its bare name. Preloaded it is found, while a search path would also
	// offer the driver root's C library, which may not fit this image's loader.
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return explain(ctx, cmd.Run(), out.String())
}

// maxOutput bounds what of the tool's words goes into a message.
const maxOutput = 300

// explain turns the end of a run into an error.
func explain(ctx context.Context, err error, output string) error {
	if err == nil {
		return nil
	}
	words := strings.Join(strings.Fields(output), " ")
	if len(words) > maxOutput {
		words = strings.ToValidUTF8(words[:maxOutput], "") + "…"
	}
	exit := new(exec.ExitError)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("nvidia-smi did not end: %w", context.Cause(ctx))
	case !errors.As(err, &exit):
		return fmt.Errorf("run nvidia-smi: %w", err)
	}
	cause := err
	switch exit.ExitCode() {
	case exitNotSupported, exitNotImplemented:
		cause = ErrNotSupported
	case exitLost, exitNotFound, exitNoDriver:
		cause = ErrGone
	case exitNoLibrary:
		cause = ErrNoTool
	}
	return fmt.Errorf("nvidia-smi: %w (%s)", cause, words)
}

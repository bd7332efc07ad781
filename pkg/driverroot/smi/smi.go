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
	// ErrHung: the tool was killed and does not end, so it hangs in the driver.
	ErrHung = errors.New("nvidia-smi was killed and does not end: the GPU driver hangs")
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

const (
	// drain is how long what a tool that was killed started may keep its output open.
	drain = time.Second
	// dying is how long a tool that was killed is waited for: in a call to a driver that does not return
	// it stays, whoever kills it, and who waits for it has a GPU locked.
	dying = 3 * time.Second
)

// Run runs the tool with arguments until it ends, the context does, or the limit is over: it is
// killed then. ErrHung is wrapped where it stays all the same. Errors wrap ErrNotSupported, ErrGone or ErrNoTool where they are such, and have the
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
	cmd.WaitDelay = drain
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ended, err := within(ctx, dying, cmd.Run)
	if !ended {
		// Its output is still being written.
		return fmt.Errorf("%w (%w)", ErrHung, context.Cause(ctx))
	}
	return explain(ctx, err, out.String())
}

// within gives what run gives; ended is false where run has not returned so long after the context
// ended. It goes on then, and nobody waits for it.
func within(ctx context.Context, grace time.Duration, run func() error) (ended bool, err error) {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return true, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
		return false, nil
	}
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

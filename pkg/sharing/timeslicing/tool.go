package timeslicing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/driverroot"
)

// toolLimit bounds one run of the tool, which takes a second on a busy node. The lock of the GPU
// is held meanwhile, and the kubelet waits 45 s.
const toolLimit = 20 * time.Second

// Exit codes of nvidia-smi, from the section "Return value" of its manual.
const (
	exitNotSupported   = 3
	exitNotFound       = 6
	exitNoDriver       = 9
	exitNoLibrary      = 12
	exitNotImplemented = 13
	exitLost           = 15
)

// Tool is the nvidia-smi of a driver root. NVML itself has no call for the time slice.
type Tool struct {
	// Root is the driver root as this process sees it.
	Root string
}

// number is the tool's word for an interval.
func number(interval configapi.TimeSlice) (string, error) {
	n, ok := map[configapi.TimeSlice]string{
		configapi.DefaultTimeSlice: "0", configapi.ShortTimeSlice: "1",
		configapi.MediumTimeSlice: "2", configapi.LongTimeSlice: "3",
	}[interval]
	if !ok {
		return "", fmt.Errorf("time slice %q is not known: allowed are Default, Short, Medium and Long", interval)
	}
	return n, nil
}

// SetTimeSlice implements Setter.
func (t Tool) SetTimeSlice(ctx context.Context, gpuUUID string, interval configapi.TimeSlice) error {
	n, err := number(interval)
	if err != nil {
		return err
	}
	tool, err := driverroot.Find(t.Root, driverroot.ProgramDirs(), "nvidia-smi")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	library, err := driverroot.Find(t.Root, driverroot.LibraryDirs(), "libnvidia-ml.so.1")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, "compute-policy", "-i", gpuUUID, "--set-timeslice="+n)
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

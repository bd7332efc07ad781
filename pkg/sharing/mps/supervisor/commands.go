package supervisor

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// Commands of a control daemon: NVIDIA's documentation of MPS, "nvidia-cuda-mps-control".
const (
	cmdServers    = "get_server_list"
	cmdSetThreads = "set_default_active_thread_percentage"
	cmdGetThreads = "get_default_active_thread_percentage"
	cmdSetMemory  = "set_default_device_pinned_mem_limit"
	cmdGetMemory  = "get_default_device_pinned_mem_limit"
)

// configure sees that a daemon answers and gives it its limits, which it does not keep over its
// end. They are read back: a limit that did not take is none.
func configure(ctx context.Context, programs Programs, name string, spec mps.Spec) error {
	if _, err := programs.Command(ctx, name, cmdServers); err != nil {
		return fmt.Errorf("does not answer %s: %w", cmdServers, err)
	}
	if p := spec.ActiveThreadPercentage; p != nil {
		if err := limit(ctx, programs, name, cmdSetThreads, cmdGetThreads, strconv.Itoa(*p), isPercentage(*p)); err != nil {
			return err
		}
	}
	for i, d := range spec.Devices {
		if d.PinnedMemoryMiB == 0 {
			continue
		}
		// A daemon knows its devices by their place; UUIDs it was seen to pass over in silence.
		device := " " + strconv.Itoa(i)
		value := strconv.FormatInt(d.PinnedMemoryMiB, 10) + "M"
		if err := limit(ctx, programs, name, cmdSetMemory+device, cmdGetMemory+device, value, isMemory(d.PinnedMemoryMiB)); err != nil {
			return err
		}
	}
	return nil
}

func limit(ctx context.Context, programs Programs, name, set, get, value string, right func(answer string) bool) error {
	said, err := programs.Command(ctx, name, set+" "+value)
	if err != nil {
		return fmt.Errorf("%s %s: %w", set, value, err)
	}
	answer, err := programs.Command(ctx, name, get)
	if err != nil {
		return fmt.Errorf("%s: %w", get, err)
	}
	if !right(answer) {
		return fmt.Errorf("%s %s did not take: it answered %q, and %s answers %q", set, value, said, get, answer)
	}
	return nil
}

// isPercentage accepts "25.0" and "25" for 25.
func isPercentage(want int) func(string) bool {
	return func(answer string) bool {
		got, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
		return err == nil && math.Abs(got-float64(want)) < 0.5
	}
}

// isMemory accepts a size in any unit that a daemon was seen to answer with ("2G", "2048M",
// "2147483648") and tells whether it is the one in MiB, up to what larger units lose.
func isMemory(want int64) func(string) bool {
	return func(answer string) bool {
		text := strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(answer)), "B")
		factor := 1.0 / (1 << 20)
		for unit, mib := range map[string]float64{"K": 1.0 / (1 << 10), "M": 1, "G": 1 << 10, "T": 1 << 20} {
			if before, ok := strings.CutSuffix(text, unit); ok {
				text, factor = before, mib
				break
			}
		}
		got, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		return err == nil && math.Abs(got*factor-float64(want)) < max(1, factor/2)
	}
}

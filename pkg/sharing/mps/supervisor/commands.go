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
	cmdShutdown   = "shutdown_server"
	cmdSetThreads = "set_default_active_thread_percentage"
	cmdGetThreads = "get_default_active_thread_percentage"
	cmdSetMemory  = "set_default_device_pinned_mem_limit"
	cmdGetMemory  = "get_default_device_pinned_mem_limit"
)

// limit is one limit of a daemon: how it is set, how it is read back, and what is right then.
type limit struct {
	set, get string
	right    func(answer string) bool
}

// limitsOf lists the limits of a spec.
func limitsOf(spec mps.Spec) []limit {
	var out []limit
	if p := spec.ActiveThreadPercentage; p != nil {
		out = append(out, limit{cmdSetThreads + " " + strconv.Itoa(*p), cmdGetThreads, isPercentage(*p)})
	}
	for i, d := range spec.Devices {
		if d.PinnedMemoryMiB == 0 {
			continue
		}
		// A daemon knows its devices by their place; UUIDs it was seen to pass over in silence.
		out = append(out, limit{
			fmt.Sprintf("%s %d %dM", cmdSetMemory, i, d.PinnedMemoryMiB), fmt.Sprintf("%s %d", cmdGetMemory, i), isMemory(d.PinnedMemoryMiB),
		})
	}
	return out
}

// endEarlyServers ends the servers that a daemon has. A program that waited for a daemon in place
// of one that died is there before the limits are, and its server would go on without them for as
// long as there are programs; it has to try again.
func endEarlyServers(ctx context.Context, programs Programs, name string) error {
	list, err := programs.Command(ctx, name, cmdServers)
	if err != nil {
		return fmt.Errorf("%s: %w", cmdServers, err)
	}
	for server := range strings.FieldsSeq(list) {
		if _, err := programs.Command(ctx, name, cmdShutdown+" "+server+" -f"); err != nil {
			return fmt.Errorf("%s %s: %w", cmdShutdown, server, err)
		}
	}
	return nil
}

// configure sees that a daemon answers and gives it its limits, which it does not keep over its
// end. They are read back: a limit that did not take is none. Each command is a process, so what
// is set is said in one go, and so is what is asked.
func configure(ctx context.Context, programs Programs, name string, spec mps.Spec) error {
	limits := limitsOf(spec)
	if len(limits) == 0 {
		if _, err := programs.Command(ctx, name, cmdServers); err != nil {
			return fmt.Errorf("does not answer %s: %w", cmdServers, err)
		}
		return nil
	}
	var sets, gets []string
	for _, l := range limits {
		sets, gets = append(sets, l.set), append(gets, l.get)
	}
	said, err := programs.Command(ctx, name, strings.Join(sets, "\n"))
	if err != nil {
		return fmt.Errorf("does not answer %s: %w", strings.Join(sets, ", "), err)
	}
	answer, err := programs.Command(ctx, name, strings.Join(gets, "\n"))
	if err != nil {
		return fmt.Errorf("does not answer %s: %w", strings.Join(gets, ", "), err)
	}
	lines := strings.Split(strings.TrimSpace(answer), "\n")
	for i, l := range limits {
		if len(lines) != len(limits) || !l.right(lines[i]) {
			return fmt.Errorf("%s did not take: the daemon said %q, and %s says %q", l.set, said, l.get, answer)
		}
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
		return err == nil && math.Abs(got*factor-float64(want)) <= max(1, factor/2)
	}
}

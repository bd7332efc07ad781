package cli_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/cmd/gpusim/cli"
)

func TestInjectHealth(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "two-islands")
	kmsg, err := os.ReadFile(filepath.Join(dir, "kmsg"))
	if err != nil || len(kmsg) > 0 {
		t.Fatalf("the kernel log of a new node: %q, %v", kmsg, err)
	}
	good(t, "inject", "xid", dir, "0", "79")
	good(t, "inject", "xid", dir, "1", "94", "--gi", "3", "--ci", "0", "--log-only")
	good(t, "inject", "recovery", dir, "2", "drain-and-reset", "--in", "1ms")
	good(t, "inject", "recovery", dir, "3", "9")
	good(t, "inject", "memory", dir, "4", "--remap-failed", "--corrected", "7", "--uncorrected", "2")
	good(t, "inject", "link-errors", dir, "5", "1", "1234")
	good(t, "inject", "event", dir, "6", "unavailable")

	text, err := os.ReadFile(filepath.Join(dir, "kmsg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{";NVRM: Xid (PCI:0000:01:00): 79, pid=", ";NVRM: Xid (PCI:0000:25:00 GPU-I:03): 94, pid="} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("the kernel log has no %q:\n%s", want, text)
		}
	}
	n, err := gpusim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	state, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	g := state.GPUs
	if g[2].RecoveryAction != 4 || g[3].RecoveryAction != 9 || g[5].Links[1].ReplayErrors != 1234 {
		t.Errorf("actions %d and %d, replays %d", g[2].RecoveryAction, g[3].RecoveryAction, g[5].Links[1].ReplayErrors)
	}
	if h := g[4].Health; h.RemapPending != 0 || h.RemapFailed != 1 || h.ECCCorrectedVolatile != 7 || h.ECCUncorrectedVolatile != 2 {
		t.Errorf("memory %+v", h)
	}
}

func TestInjectHealthMistakes(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "t4-4")
	for line, words := range map[string]string{
		"xid DIR 9 79":              "no such GPU",
		"xid DIR 9 79 --log-only":   "no such GPU",
		"xid DIR 0 many":            `XID "many"`,
		"recovery DIR 0 hope":       "use a number or one of none, reset",
		"recovery DIR 0 -- -1":      "use a number or one of",
		"recovery DIR x reset":      `GPU "x"`,
		"memory DIR 9":              "no such GPU",
		"link-errors DIR 0 one 1":   `link "one"`,
		"link-errors DIR 0 0 none":  `count "none"`,
		"link-errors DIR 0 0 1":     "has no NVLink 0",
		"event DIR 0 birthday":      "use unavailable or recovery-action",
		"event DIR 9 unavailable":   "no such GPU",
		"event /nowhere 0 birthday": "nowhere",
	} {
		args := strings.Fields("inject " + strings.ReplaceAll(line, "DIR", dir))
		if _, _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", line, err, words)
		}
	}
}

// A wait ends with the program.
func TestInjectWaits(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "t4-4")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := cli.New(io.Discard, io.Discard)
	root.SetArgs([]string{"inject", "xid", dir, "0", "79", "--in", "1h"})
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

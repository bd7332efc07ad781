// Package tools_test tries the scripts of this folder.
package tools_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// step runs a command by the script, as part of what began some time ago. It returns when nobody is left
// that could write, so a script that leaves its clock running hangs here.
func step(t *testing.T, ago time.Duration, command ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	c := exec.CommandContext(t.Context(), "./step", append([]string{"a deed"}, command...)...)
	c.Stdout, c.Stderr = &out, &errs
	c.Env = append(os.Environ(), "STEPS_TICK=0.05", fmt.Sprintf("STEPS_BEGAN=%d", time.Now().Add(-ago).Unix()))
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

func TestStepTellsWhatAndHowLong(t *testing.T) {
	stdout, stderr, code := step(t, time.Hour, "echo", "two  words")
	if code != 0 || stdout != "two  words\n" {
		t.Errorf("exit code %d, and the command writes %q", code, stdout)
	}
	// A machine under load may need a while for it.
	for _, want := range []string{`==> a deed \(6\d:\d\d so far\)\n`, `\n    a deed: \d+:\d\d\n`} {
		if !regexp.MustCompile(want).MatchString(stderr) {
			t.Errorf("it says %q, without %s", stderr, want)
		}
	}
}

// TestStepSaysThatItIsAlive runs a command that ends when the script has said so twice.
func TestStepSaysThatItIsAlive(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	c := exec.CommandContext(t.Context(), "./step", "a deed", "bash", "-c",
		`for _ in {1..3000}; do [ "$(grep -c "a deed \.\.\. " "$0")" -lt 2 ] || exit 0; sleep 0.02; done; exit 1`, log.Name())
	c.Stderr = log
	c.Env = append(os.Environ(), "STEPS_TICK=0.05")
	if err := c.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Errorf("%v; it says %q", err, text)
	}
}

func TestStepPassesTheExitCodeOn(t *testing.T) {
	_, stderr, code := step(t, 0, "bash", "-c", "exit 7")
	if code != 7 || !strings.Contains(stderr, "a deed: failed after ") || !strings.Contains(stderr, "(exit code 7)") {
		t.Errorf("exit code %d, and it says %q", code, stderr)
	}
	if _, stderr, code = step(t, 0, "/no/such/program"); code != 127 {
		t.Errorf("without a program: exit code %d, and it says %q", code, stderr)
	}
}

package bed

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// start runs a shell script; it has begun when it has written to its log.
func start(t *testing.T, script string) *process {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := launch(ctx, filepath.Join(t.TempDir(), "log"), sh, "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it must outlive the context
	t.Cleanup(p.kill)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if text, _ := os.ReadFile(p.log); len(text) > 0 {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal("the script did not begin")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestProcessEnds(t *testing.T) {
	p := start(t, "trap 'exit 0' TERM; echo begun; while :; do sleep 0.01; done")
	if !p.running() {
		t.Error("not running")
	}
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
	if p.running() {
		t.Error("running after its end")
	}
	if err := p.end(time.Second); err != nil {
		t.Errorf("the second end: %v", err)
	}
}

func TestProcessThatStays(t *testing.T) {
	p := start(t, "trap '' TERM; echo begun; while :; do sleep 0.01; done")
	if err := p.end(50 * time.Millisecond); err == nil {
		t.Error("no error")
	}
	if p.running() {
		t.Error("running: it should have been killed")
	}
}

func TestProcessThatFails(t *testing.T) {
	p := start(t, "trap 'exit 3' TERM; echo begun; while :; do sleep 0.01; done")
	if err := p.end(10 * time.Second); err == nil {
		t.Error("no error for exit code 3")
	}
}

// A flag of the plugin could come from the environment of this process.
func TestProcessEnvironment(t *testing.T) {
	t.Setenv("NODE_NAME", "other")
	p := start(t, `echo "node ${NODE_NAME-none}"`)
	<-p.ended
	if text, err := os.ReadFile(p.log); err != nil || strings.TrimSpace(string(text)) != "node none" {
		t.Errorf("log %q, %v", text, err)
	}
}

func TestLaunchErrors(t *testing.T) {
	if _, err := launch(t.Context(), filepath.Join(t.TempDir(), "log"), "/absent/program"); err == nil {
		t.Error("no error for a program that is not there")
	}
	if _, err := launch(t.Context(), filepath.Join(t.TempDir(), "absent", "log"), "/bin/true"); err == nil {
		t.Error("no error for a log that cannot be made")
	}
}

func TestCold(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	const content = "#!/bin/sh\necho ok\n"
	if err := os.WriteFile(from, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also over a file that is there
		if err := Cold(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), to).Output(); err != nil || string(out) != "ok\n" {
		t.Errorf("the copy says %q, %v", out, err)
	}
	if err := Cold(filepath.Join(dir, "absent"), to); err == nil {
		t.Error("no error for a program that is not there")
	}
}

package walkthrough

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shell starts a script that says "ready" when it is.
func shell(t *testing.T, script string) *process {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcess(t.Context(), log, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.stop(time.Millisecond) })
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !strings.Contains(strings.Join(lastLinesOf(log), " "), "ready") {
		select {
		case <-ticker.C:
		case <-t.Context().Done():
			t.Fatal("the script never was ready")
		}
	}
	return p
}

// obedient ends with a code at SIGTERM.
func obedient(code string) string {
	return `trap 'exit ` + code + `' TERM; echo ready; while :; do sleep 0.01; done`
}

func TestStopProcess(t *testing.T) {
	if err := shell(t, obedient("0")).stop(patience); err != nil {
		t.Errorf("clean end: %v", err)
	}
	if err := shell(t, obedient("3")).stop(patience); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("bad end: %v", err)
	}
	stubborn := shell(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	if err := stubborn.stop(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("no end: %v", err)
	}
	p := shell(t, "echo ready")
	<-p.ended
	if err := p.stop(patience); err != nil {
		t.Errorf("ended before: %v", err)
	}
}

func TestProcessKnowsNothingOfThisEnvironment(t *testing.T) {
	t.Setenv("NODE_NAME", "wrong")
	p := shell(t, `echo "ready [$NODE_NAME]"`)
	<-p.ended
	if got := lastLinesOf(p.log); got[0] != "ready []" {
		t.Errorf("%q", got)
	}
}

func TestContextEndsWithTheProcess(t *testing.T) {
	p := shell(t, "echo ready; exit 7")
	ctx, cancel := p.while(t.Context())
	defer cancel()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errEnded) || !strings.Contains(cause.Error(), "exit status 7") {
		t.Errorf("%v", cause)
	}
	running := shell(t, obedient("0"))
	ctx, cancel = running.while(t.Context())
	cancel()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("cancelled by the walk: %v", cause)
	}
}

func TestWhatCannotStart(t *testing.T) {
	if _, err := startProcess(t.Context(), filepath.Join(t.TempDir(), "log"), "/absent/program"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if _, err := startProcess(t.Context(), "/absent/log", "/bin/sh"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
}

package smi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fake puts a tool that runs a shell script into a driver root. NVML is an empty library there.
func fake(t *testing.T, dir, script string) Tool {
	t.Helper()
	root := t.TempDir()
	ok(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	ok(t, os.MkdirAll(filepath.Join(root, "usr/lib64"), 0o755))
	ok(t, os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), nil, 0o600))
	ok(t, os.WriteFile(filepath.Join(root, dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755))
	return Tool{Root: root}
}

// The library of the driver root is the one that the tool finds by its bare name.
func TestToolGetsTheLibrary(t *testing.T) {
	record := filepath.Join(t.TempDir(), "preload")
	tool := fake(t, "usr/bin", "echo \"$LD_PRELOAD\" > "+record)
	ok(t, tool.Run(t.Context(), time.Minute, "--do", "it"))
	have, err := os.ReadFile(record)
	ok(t, err)
	if want := filepath.Join(tool.Root, "usr/lib64/libnvidia-ml.so.1"); strings.TrimSpace(string(have)) != want {
		t.Errorf("preloaded %q, want %q", have, want)
	}
}

func TestToolErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		want   error
	}{
		"not supported":   {"echo 'Failed to set timeslice : Not Supported'; exit 3", ErrNotSupported},
		"not in library":  {"exit 13", ErrNotSupported},
		"no such GPU":     {"exit 6", ErrGone},
		"driver unloaded": {"exit 9", ErrGone},
		"lost":            {"exit 15", ErrGone},
		"no library":      {"exit 12", ErrNoTool},
	} {
		t.Run(name, func(t *testing.T) {
			if err := fake(t, "usr/bin", tt.script).Run(t.Context(), time.Minute, "--do", "it"); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	t.Run("no permission", func(t *testing.T) {
		err := fake(t, "usr/bin", "echo one; echo two >&2; exit 4").Run(t.Context(), time.Minute, "--do", "it")
		if err == nil || errors.Is(err, ErrNotSupported) || errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "one two") {
			t.Errorf("%v", err)
		}
	})
	t.Run("many words", func(t *testing.T) {
		err := fake(t, "usr/bin", "yes äöü | head -c 5000; exit 4").Run(t.Context(), time.Minute, "--do", "it")
		if err == nil || len(err.Error()) > 2*maxOutput {
			t.Errorf("%v", err)
		}
	})
	t.Run("no tool", func(t *testing.T) {
		if err := (Tool{Root: t.TempDir()}).Run(t.Context(), time.Minute, "--do", "it"); !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), "usr/bin") {
			t.Errorf("%v", err)
		}
	})
	t.Run("no NVML", func(t *testing.T) {
		tool := fake(t, "usr/bin", "exit 0")
		ok(t, os.Remove(filepath.Join(tool.Root, "usr/lib64/libnvidia-ml.so.1")))
		if err := tool.Run(t.Context(), time.Minute, "--do", "it"); !errors.Is(err, ErrNoTool) {
			t.Errorf("%v", err)
		}
	})
	t.Run("not a program", func(t *testing.T) {
		tool := fake(t, "usr/bin", "")
		ok(t, os.WriteFile(filepath.Join(tool.Root, "usr/bin/nvidia-smi"), []byte{0}, 0o755))
		if err := tool.Run(t.Context(), time.Minute, "--do", "it"); err == nil || errors.Is(err, ErrGone) {
			t.Errorf("%v", err)
		}
	})
}

func TestToolThatHangsIsEnded(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	ok(t, unix.Mkfifo(started, 0o600))
	tool := fake(t, "usr/bin", "echo > "+started+"; exec sleep 1000")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the claim is unprepared")
	done := make(chan error, 1)
	go func() { done <- tool.Run(ctx, time.Minute, "--do", "it") }()
	// Opening a named pipe waits for the other end: the tool runs.
	pipe, err := os.Open(started)
	ok(t, err)
	defer func() { _ = pipe.Close() }()
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// A run that takes too long is ended, whoever waits.
func TestLimit(t *testing.T) {
	tool := fake(t, "usr/bin", "exec sleep 1000")
	if err := tool.Run(t.Context(), time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// Who waits for a tool that nobody can end is let go.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		for name, row := range map[string]struct {
			takes time.Duration
			ended bool
			after time.Duration
		}{
			"at once":              {0, true, 0},
			"in time":              {time.Minute, true, time.Minute},
			"when it was killed":   {62 * time.Second, true, 62 * time.Second},
			"never, for all it is": {time.Hour, false, 63 * time.Second},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			begin := time.Now()
			ended, err := within(ctx, dying, func() error { time.Sleep(row.takes); return failed })
			if ended != row.ended || ended != errors.Is(err, failed) || time.Since(begin) != row.after {
				t.Errorf("%s: %t, %v after %s", name, ended, err, time.Since(begin))
			}
			cancel()
		}
		// What nobody waits for ends, too.
		time.Sleep(2 * time.Hour)
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Package tracer stops a running process at the n-th change that it makes to files below given
// directories: it kills it there, lets that change and all after it fail, or lets them take long. So
// a test can end a program at every durable step without the program having a hook for it.
//
// It is for tests on Linux that may trace (root, or the same user). It attaches to all threads
// with ptrace, which only the attaching thread may use further and which would collide with
// os/exec waiting for the same process; so it runs in a process of its own: the test binary
// started again, see [Main]. It must not know what program it traces.
package tracer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Plan says what to look at and what to do.
type Plan struct {
	PID int
	// Dirs are absolute; changes elsewhere do not count.
	Dirs []string
	// At is the number of the change, from 1, at which Do begins; 0 only counts.
	At int
	// Errno is what that change, and every later one of the kinds in Fails, fails with. 0 kills the
	// process instead, before the change is made.
	Errno syscall.Errno
	// Fails are the kinds that fail; empty means all.
	Fails []Kind
	// Delay has each change from At on of the kinds in Fails wait that long and then be made: a slow
	// disk. Only the thread that makes it waits, and at most until the trace ends. Errno is not used
	// then.
	Delay time.Duration
	// Once lets only the first change from At on fail, or wait.
	Once bool
}

// Kind is a sort of change.
type Kind string

// The kinds.
const (
	Create Kind = "create" // openat with O_CREAT
	Write  Kind = "write"
	Sync   Kind = "sync"
	Rename Kind = "rename"
	Remove Kind = "remove"
	Mkdir  Kind = "mkdir"
)

// Change is one change that was seen.
type Change struct {
	Kind Kind
	Path string
	// Hit is set where the process was killed, or the change made to fail or to wait.
	Hit bool
}

func (c Change) String() string {
	if c.Hit {
		return fmt.Sprintf("%s %s (hit)", c.Kind, c.Path)
	}
	return fmt.Sprintf("%s %s", c.Kind, c.Path)
}

// variable carries the plan to the process that traces.
const variable = "PROCESS_TRACER_PLAN"

// ready is the line that says that all threads are traced.
const ready = "ready"

// Main traces and exits when this process was started for that, and returns at once when not.
// Test binaries call it first in TestMain.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var plan Plan
	err := json.Unmarshal([]byte(text), &plan)
	if err == nil {
		err = trace(plan, os.Stdout, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Tracer is a trace under way.
type Tracer struct {
	cmd    *exec.Cmd
	stop   io.Closer
	errors strings.Builder
	hit    chan struct{}
	// read is closed when all that the trace says was read; changes and err are whole then.
	read    chan struct{}
	changes []Change
	err     error
}

// Start begins to trace and returns when every thread is. The trace ends at the latest with the
// context.
func Start(ctx context.Context, plan Plan) (*Tracer, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &Tracer{cmd: exec.CommandContext(ctx, self), hit: make(chan struct{}), read: make(chan struct{})}
	// A binary with the race detector would wait a second before it exits.
	t.cmd.Env = append(os.Environ(), variable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	t.cmd.Stderr = &t.errors
	in, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t.stop = in
	lines := bufio.NewScanner(out)
	attached := lines.Scan() && lines.Text() == ready
	go t.follow(lines)
	if !attached {
		_, err := t.Stop()
		return nil, errors.Join(fmt.Errorf("trace process %d: not attached", plan.PID), err)
	}
	return t, nil
}

// follow reads what the trace says until it ends.
func (t *Tracer) follow(lines *bufio.Scanner) {
	defer close(t.read)
	met := false
	for lines.Scan() {
		var c Change
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.err = fmt.Errorf("trace: line %q: %w", lines.Text(), err)
			return
		}
		t.changes = append(t.changes, c)
		if c.Hit && !met {
			met = true
			close(t.hit)
		}
	}
}

// Hit is closed once the first change is hit, which may be never.
func (t *Tracer) Hit() <-chan struct{} { return t.hit }

// Stop lets the process run on untraced, if it lives, and returns the changes in their order.
func (t *Tracer) Stop() ([]Change, error) {
	_ = t.stop.Close() // the tracer may have ended with its process
	<-t.read
	if err := t.cmd.Wait(); err != nil && t.err == nil {
		return t.changes, fmt.Errorf("trace: %w: %s", err, t.errors.String())
	}
	return t.changes, t.err
}

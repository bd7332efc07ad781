package proc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrEnded is wrapped when a component ended while somebody waited for it to get ready.
var ErrEnded = errors.New("component ended")

// ErrTimeout is wrapped when something did not get ready in time.
var ErrTimeout = errors.New("not ready in time")

// poll is how often a state that the kernel does not announce is looked at.
const poll = 50 * time.Millisecond

// Supervisor starts and ends the components of one owner.
type Supervisor struct {
	Table Table
	// Owner is the mark of everything started here, such as a cluster's state folder.
	Owner string
	// LogDir gets NAME.log for each component, appended to at every start.
	LogDir string
	// Path is the PATH of the components.
	Path string
}

// Command is how a component is started.
type Command struct {
	Args []string
	// Inputs are contents (such as of configuration files) that, like Args, make a running
	// component outdated when they change.
	Inputs []string
}

func (c Command) hash() string {
	h := sha256.New()
	for _, s := range append(append([]string{}, c.Args...), c.Inputs...) {
		// Lengths keep ("ab","c") from equalling ("a","bc").
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Find returns the running component of that name.
func (s *Supervisor) Find(name string) (Process, bool, error) {
	all, err := s.Table.Scan(s.Owner)
	if err != nil {
		return Process{}, false, err
	}
	for _, p := range all {
		if p.Leader && p.Component == name {
			return p, true, nil
		}
	}
	return Process{}, false, nil
}

// Current tells whether the component runs as the command says.
func (s *Supervisor) Current(name string, c Command) (bool, error) {
	p, ok, err := s.Find(name)
	return ok && p.Spec == c.hash(), err
}

// Start makes the component run as the command says: it does nothing where it already does,
// and replaces one that was started otherwise. The process outlives the caller.
func (s *Supervisor) Start(ctx context.Context, name string, c Command) (Process, error) {
	if p, ok, err := s.Find(name); err != nil {
		return Process{}, err
	} else if ok {
		if p.Spec == c.hash() {
			return p, nil
		}
		if err := s.Stop(ctx, name, syscall.SIGTERM); err != nil {
			return Process{}, err
		}
	}
	log, err := os.OpenFile(s.LogFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Process{}, fmt.Errorf("log of %s: %w", name, err)
	}
	// The end of the caller must not end the component.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.Args[0], c.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = s.environment(name, c)
	err = errors.Join(cmd.Start(), log.Close())
	if err != nil {
		return Process{}, fmt.Errorf("start %s: %w", name, err)
	}
	// Reaps the process if it ends before the caller does.
	go func() { _ = cmd.Wait() }()
	st, err := s.Table.stat(cmd.Process.Pid)
	if err != nil {
		return Process{}, fmt.Errorf("start %s: %w: %w%s", name, ErrEnded, err, s.Tail(name))
	}
	return Process{PID: cmd.Process.Pid, Start: st.start, Owner: s.Owner, Component: name, Spec: c.hash(), Leader: true}, nil
}

func (s *Supervisor) environment(name string, c Command) []string {
	var env []string
	for _, pair := range os.Environ() {
		key, _, _ := strings.Cut(pair, "=")
		switch key {
		case ownerKey, componentKey, specKey, "PATH", "KUBECONFIG":
		default:
			env = append(env, pair)
		}
	}
	return append(env, "PATH="+s.Path, ownerKey+"="+s.Owner, componentKey+"="+name, specKey+"="+c.hash())
}

// LogFile is the path of a component's log.
func (s *Supervisor) LogFile(name string) string { return filepath.Join(s.LogDir, name+".log") }

// Tail returns the last lines of a component's log, for an error message.
func (s *Supervisor) Tail(name string) string {
	raw, err := os.ReadFile(s.LogFile(name))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return "\n  " + strings.Join(lines[max(0, len(lines)-4):], "\n  ") + "\n  (log: " + s.LogFile(name) + ")"
}

// Stop ends the component: the signal, and after five seconds SIGKILL. A component that
// does not run is no error.
func (s *Supervisor) Stop(ctx context.Context, name string, signal syscall.Signal) error {
	p, ok, err := s.Find(name)
	if err != nil || !ok {
		return err
	}
	if err := s.end(ctx, p, signal, 5*time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

func (s *Supervisor) end(ctx context.Context, p Process, signal syscall.Signal, grace time.Duration) error {
	if err := kill(p.PID, signal); err != nil {
		return err
	}
	gone := func() (bool, error) { return !s.Table.Alive(p), nil }
	if err := Poll(ctx, grace, gone); err == nil || ctx.Err() != nil {
		return err
	}
	if err := kill(p.PID, syscall.SIGKILL); err != nil {
		return err
	}
	return Poll(ctx, 10*time.Second, gone)
}

func kill(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// KillAll ends with SIGKILL every process of the owner that match accepts, the component's
// children among them, and waits until they are gone.
func (s *Supervisor) KillAll(ctx context.Context, match func(Process) bool) error {
	var errs []error
	gone := func() (bool, error) {
		all, err := s.Table.Scan(s.Owner)
		if err != nil {
			return false, err
		}
		done := true
		for _, p := range all {
			if match(p) {
				done = false
				errs = append(errs, kill(p.PID, syscall.SIGKILL))
			}
		}
		return done, errors.Join(errs...)
	}
	return Poll(ctx, 10*time.Second, gone)
}

// WaitReady polls ready until it holds. It gives up when the component ends, when the time
// is over or when the context is; the error has the last lines of the component's log.
func (s *Supervisor) WaitReady(ctx context.Context, name string, limit time.Duration, ready func(context.Context) error) error {
	var last error
	err := Poll(ctx, limit, func() (bool, error) {
		if last = ready(ctx); last == nil {
			return true, nil
		}
		_, running, err := s.Find(name)
		if err == nil && !running {
			err = ErrEnded
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w (last: %w)%s", name, err, last, s.Tail(name))
	}
	return nil
}

// Poll calls done until it is true or fails, for at most limit.
func Poll(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("%w: %s", ErrTimeout, limit)
		case <-ticker.C:
		}
	}
}

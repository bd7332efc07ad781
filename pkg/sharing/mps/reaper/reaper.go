// Package reaper is the first process of the container in which MPS control daemons live. It does
// three things and never changes: it has a supervisor running, it is the parent of whatever lost
// its own, and it holds the lock that says that daemons can live. So a supervisor can be killed
// without an end to the container and its daemons. It is for cmd/gpu-mps-daemon.
//
// The package must not know what the supervisor does.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/procstat"
)

// Config is what a reaper works with.
type Config struct {
	// Lock is the file that is locked while this process lives.
	Lock string
	// Supervisor is the command line that is kept running.
	Supervisor []string
	// Pause is the time before the n-th start in a row of a supervisor that does not last, n from
	// 0; nil means 50 ms, doubled up to 5 s.
	Pause func(n int) time.Duration
	// Grace is what processes get to end after SIGTERM before they are killed; 0 means 3 s.
	Grace time.Duration
}

const (
	// lasting is how long a supervisor lives that is not taken for one that fails at its start.
	lasting = 10 * time.Second
	// retry is the time between two tries to get the lock.
	retry        = 100 * time.Millisecond
	defaultGrace = 3 * time.Second
)

// reaper is what runs.
type reaper struct {
	Config
	supervisor int
	started    time.Time
	failures   int
}

// Run reaps until the context ends, and then ends all processes that are below this one. It must
// be called once in a process that starts no others.
func Run(ctx context.Context, config Config) error {
	if config.Pause == nil {
		config.Pause = func(n int) time.Duration { return min(50*time.Millisecond<<min(n, 10), 5*time.Second) }
	}
	if config.Grace == 0 {
		config.Grace = defaultGrace
	}
	lock, err := takeLock(ctx, config.Lock)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	// Also where this is not process 1: with the host's process numbers it is not.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	r := &reaper{Config: config}
	r.run(ctx, children)
	return r.endAll(children)
}

// takeLock waits for the end of another container's first process.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the lock: %w", err)
	}
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock of the control daemons' container: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, path) {
			return f, nil
		}
		err = errors.Join(err, f.Close())
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		timer := time.NewTimer(retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%s is locked: the container before this one has not ended: %w", path, ctx.Err())
		}
	}
}

// isAt tells whether a path still names the file: whoever tidies the node removes the one that
// nobody has locked.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(own, there)
}

// run keeps a supervisor until the context ends.
func (r *reaper) run(ctx context.Context, children <-chan os.Signal) {
	start := time.NewTimer(0)
	defer start.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-start.C:
			if err := r.start(); err != nil {
				klog.FromContext(ctx).Error(err, "The supervisor cannot be started")
				start.Reset(r.pause())
			}
		case <-children:
			if status, ended := r.reap(); ended {
				klog.FromContext(ctx).Info("The supervisor ended; starting another", "status", status)
				start.Reset(r.pause())
			}
		}
	}
}

func (r *reaper) start() error {
	process, err := os.StartProcess(r.Supervisor[0], r.Supervisor, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	r.supervisor, r.started = process.Pid, time.Now()
	// It is waited for with all others.
	return process.Release()
}

// pause is the time before the next start.
func (r *reaper) pause() time.Duration {
	if time.Since(r.started) > lasting {
		r.failures = 0
	}
	r.failures++
	return r.Pause(r.failures - 1)
}

// reap takes note of all that ended; ended tells that the supervisor is among them.
func (r *reaper) reap() (status string, ended bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid == 0:
			return status, ended
		case pid == r.supervisor:
			r.supervisor, ended, status = 0, true, describe(ws)
		}
	}
}

func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "killed by " + ws.Signal().String()
	}
	return "exit code " + strconv.Itoa(ws.ExitStatus())
}

// endAll ends all children, and theirs when they become children. It returns when there are none.
func (r *reaper) endAll(ended <-chan os.Signal) error {
	r.signalAll(unix.SIGTERM)
	grace := time.NewTimer(r.Grace)
	defer grace.Stop()
	again := time.NewTicker(retry)
	defer again.Stop()
	signal := unix.SIGTERM
	for {
		r.reap()
		if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); errors.Is(err, unix.ECHILD) {
			return nil
		}
		select {
		case <-ended:
		case <-again.C:
			r.signalAll(signal)
		case <-grace.C:
			signal = unix.SIGKILL
			r.signalAll(signal)
		}
	}
}

// signalAll signals the children of this process. None of their numbers can be another process'
// meanwhile: they stay taken until they are waited for, here.
func (*reaper) signalAll(signal unix.Signal) {
	for _, pid := range childrenOf(os.Getpid()) {
		_ = unix.Kill(pid, signal)
	}
}

// childrenOf looks into /proc: the file that lists children is an option of the kernel.
func childrenOf(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if stat, err := procstat.Read("/proc", pid); err == nil && stat.Parent == parent {
			out = append(out, pid)
		}
	}
	return out
}

package reaper

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/procstat"
)

// This program is also the first process of a container, and what runs below it: one a role.
const envRole = "REAPER_TEST_ROLE"

func TestMain(m *testing.M) {
	dir := os.Getenv("REAPER_TEST_DIR")
	switch os.Getenv(envRole) {
	case "reaper":
		os.Exit(beReaper(dir))
	case "supervisor":
		os.Exit(beSupervisor(dir))
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func beReaper(dir string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The end is a file: the test sends no signal to what it has not started itself.
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "end")); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	self, err := os.Executable()
	if err != nil || os.Setenv(envRole, "supervisor") != nil {
		return 2
	}
	err = Run(ctx, Config{
		Lock: filepath.Join(dir, "lock"), Supervisor: []string{self},
		Pause: func(int) time.Duration { return time.Millisecond }, Grace: 10 * time.Millisecond,
	})
	if err != nil {
		return 1
	}
	return 0
}

// beSupervisor starts an orphan that takes no SIGTERM, says who both are, and waits for its end.
func beSupervisor(dir string) int {
	orphan := exec.CommandContext(context.Background(), "sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait")
	orphan.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := orphan.StdoutPipe()
	if err != nil || orphan.Start() != nil {
		return 2
	}
	pid := make([]byte, 16)
	n, err := out.Read(pid)
	if err != nil {
		return 2
	}
	line := strconv.Itoa(os.Getpid()) + " " + strconv.Itoa(orphan.Process.Pid) + " " + strings.TrimSpace(string(pid[:n]))
	file := filepath.Join(dir, "pids")
	if os.WriteFile(file+".new", []byte(line), 0o600) != nil || os.Rename(file+".new", file) != nil {
		return 2
	}
	time.Sleep(time.Hour)
	return 0
}

// container is a reaper that runs.
type container struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
}

func start(t *testing.T, dir string) *container {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), envRole+"=reaper", "REAPER_TEST_DIR="+dir)
	must(t, cmd.Start())
	return &container{t, dir, cmd}
}

// pids waits for a supervisor and gives it, its child and its child's child.
func (c *container) pids() (supervisor int, below []int) {
	c.t.Helper()
	file := filepath.Join(c.dir, "pids")
	c.until("a supervisor", func() bool { _, err := os.Stat(file); return err == nil })
	data, err := os.ReadFile(file)
	must(c.t, err)
	must(c.t, os.Remove(file))
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		must(c.t, err)
		below = append(below, pid)
	}
	return below[0], below[1:]
}

func (c *container) until(what string, is func() bool) {
	c.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-c.t.Context().Done():
			c.t.Fatalf("never: %s", what)
		}
	}
}

// there tells whether a process exists, also one that ended and was not waited for.
func there(pid int) bool { return unix.Kill(pid, 0) == nil }

// A supervisor that is killed is followed by another; what it had started lives on below the
// reaper, which waits for it, and ends with it.
func TestReaper(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir)
	supervisor, orphans := c.pids()
	must(t, unix.Kill(supervisor, unix.SIGKILL))
	next, more := c.pids()
	if next == supervisor || there(supervisor) {
		t.Errorf("supervisor %d, before %d", next, supervisor)
	}
	for _, pid := range orphans {
		if !there(pid) {
			t.Errorf("%d ended with the supervisor", pid)
		}
	}
	c.until("the orphan is the reaper's child", func() bool {
		stat, err := procstat.Read("/proc", orphans[0])
		return err == nil && stat.Parent == c.cmd.Process.Pid
	})
	// Killed orphans do not stay as zombies.
	must(t, unix.Kill(orphans[1], unix.SIGKILL))
	c.until("the orphans are gone", func() bool { return !there(orphans[1]) && !there(orphans[0]) })

	must(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o600))
	must(t, c.cmd.Wait())
	for _, pid := range append(more, next) {
		if there(pid) {
			t.Errorf("%d is left", pid)
		}
	}
}

// A second container waits for the end of the first, however that comes.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	lock := filepath.Join(dir, "lock")
	f, err := takeLock(t.Context(), lock)
	must(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := takeLock(ended, lock); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "is locked") {
		t.Errorf("error %v", err)
	}
	got := make(chan error)
	go func() {
		second, err := takeLock(t.Context(), lock)
		got <- errors.Join(err, second.Close())
	}()
	must(t, f.Close())
	must(t, <-got)
}

// The file may be removed, by whoever had the lock, between the look at it and the lock: that of a
// file that has no name any more keeps nobody off.
func TestLockOfARemovedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := takeLock(t.Context(), path)
	must(t, err)
	got := make(chan error)
	go func() {
		second, err := takeLock(t.Context(), path)
		if err == nil && !isAt(second, path) {
			err = errors.New("the lock is of another file")
		}
		got <- errors.Join(err, second.Close())
	}()
	must(t, os.Remove(path))
	must(t, first.Close())
	must(t, <-got)
}

package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// childMode tells this test binary to be another process: it works in its working directory.
const (
	childMode  = "LOCK_TEST_CHILD"
	modeHold   = "hold"
	modeCount  = "count"
	heldKey    = "claim-held"
	countTimes = 100
)

func TestMain(m *testing.M) {
	switch os.Getenv(childMode) {
	case modeHold:
		holdForever()
	case modeCount:
		_, _ = fmt.Fprintln(os.Stdout, "counted", count(countTimes))
	default:
		goleak.VerifyTestMain(m)
	}
}

// holdForever takes a lock, says so and waits to be killed.
func holdForever() {
	l, err := Open(".", Options{Holder: "the child"})
	if err == nil {
		_, err = l.Lock(context.Background(), Key{Name: heldKey, Transient: true})
	}
	_, _ = fmt.Fprintln(os.Stdout, "held", err)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// child is this test binary as another process in the directory.
func child(t *testing.T, dir, mode string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	return cmd
}

// count adds to the number in a file, reading and writing it under a lock.
func count(times int) error {
	l, err := Open("locks", Options{})
	if err != nil {
		return err
	}
	const file = "number"
	for i := range times {
		unlock, err := l.Lock(context.Background(), Key{Name: "number", Transient: i%2 == 0})
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(file)
		n, _ := strconv.Atoi(string(text))
		err = os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func locker(t testing.TB, dir string, opts Options) *Locker {
	t.Helper()
	l, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustLock(t testing.TB, l *Locker, key Key) func() {
	t.Helper()
	unlock, err := l.Lock(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() == overflow+suffix {
			continue // always there
		}
		out = append(out, e.Name())
	}
	return out
}

// Waiters within a process get the lock in the order in which they came.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, t.TempDir(), Options{})
		unlock := mustLock(t, l, Key{Name: "gpu"})
		var order []int
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				free, err := l.Lock(t.Context(), Key{Name: "gpu"})
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				free()
			})
			synctest.Wait() // i waits before i+1 comes
		}
		start := time.Now()
		unlock()
		wg.Wait()
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4}, order); diff != "" {
			t.Error(diff)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waiters of one process were woken by a clock: %s", waited)
		}
		if len(l.queues) != 0 {
			t.Errorf("queues left: %v", l.queues)
		}
	})
}

func TestTimeoutNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := locker(t, dir, Options{Holder: "instance a"})
		b := locker(t, dir, Options{Holder: "instance b", MaxWait: 5 * time.Second})
		unlock := mustLock(t, a, Key{Name: "gpu"})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		tests := []struct {
			name   string
			ctx    context.Context
			locker *Locker
			waited time.Duration
			cause  error
		}{
			{"other process, MaxWait", t.Context(), b, 5 * time.Second, context.DeadlineExceeded},
			{"other process, context", short, b, 0, context.DeadlineExceeded},
			{"same process, MaxWait", t.Context(), a, DefaultMaxWait, context.DeadlineExceeded},
		}
		for _, tt := range tests {
			_, err := tt.locker.Lock(tt.ctx, Key{Name: "gpu"})
			timeout := new(TimeoutError)
			if !errors.As(err, &timeout) || !errors.Is(err, tt.cause) {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if tt.waited > 0 && timeout.Waited != tt.waited {
				t.Errorf("%s: waited %s, want %s", tt.name, timeout.Waited, tt.waited)
			}
			if timeout.Waited > 0 && (timeout.Holder != "instance a" || !strings.Contains(err.Error(), "gpu was not free")) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		unlock()
		mustLock(t, b, Key{Name: "gpu"})()
	})
}

// A waiter that gives up leaves its place to the next; a turn is never lost.
func TestGivingUpPassesTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, t.TempDir(), Options{})
		unlock := mustLock(t, l, Key{Name: "k"})
		impatient, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Lock(impatient, Key{Name: "k"}); !errors.Is(err, context.Canceled) {
				t.Errorf("the impatient one: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { mustLock(t, l, Key{Name: "k"})() })
		synctest.Wait()
		cancel()
		unlock() // may meet the impatient one before it has seen the end of its context
		wg.Wait()
		mustLock(t, l, Key{Name: "k"})()
	})
}

// Many goroutines on two lockers (as two processes) never hold one lock at once, although the
// file of a transient lock comes and goes all the time; and nothing is left at the end.
func TestExclusionUnderStress(t *testing.T) {
	dir := t.TempDir()
	var inside [3]atomic.Int32
	var total atomic.Int32
	var wg sync.WaitGroup
	for range 2 {
		l := locker(t, dir, Options{})
		for g := range 6 {
			wg.Go(func() {
				for range 40 {
					i := g % len(inside)
					unlock, err := l.Lock(t.Context(), Key{Name: fmt.Sprintf("claim-%d", i), Transient: true})
					if err != nil {
						t.Error(err)
						return
					}
					if n := inside[i].Add(1); n != 1 {
						t.Errorf("%d holders at once", n)
					}
					total.Add(1)
					inside[i].Add(-1)
					unlock()
				}
			})
		}
	}
	wg.Wait()
	if total.Load() != 2*6*40 {
		t.Errorf("%d of %d turns", total.Load(), 2*6*40)
	}
	if left := names(t, dir); left != nil {
		t.Errorf("files left: %v", left)
	}
}

// Callers that want overlapping sets in any order never wait for each other for ever.
func TestLockAllHasNoDeadlock(t *testing.T) {
	dir := t.TempDir()
	a, b := locker(t, dir, Options{}), locker(t, dir, Options{})
	rapid.Check(t, func(rt *rapid.T) {
		key := rapid.Custom(func(t *rapid.T) Key {
			return Key{Name: rapid.SampledFrom([]string{"g0", "g1", "g2", "g3"}).Draw(t, "k")}
		})
		var wg sync.WaitGroup
		errs := make(chan error, 6)
		for i := range 6 {
			keys := rapid.SliceOfN(key, 0, 5).Draw(rt, "keys")
			l := []*Locker{a, b}[i%2]
			wg.Go(func() {
				unlock, err := l.LockAll(context.Background(), keys...)
				if err == nil {
					unlock()
				}
				errs <- err
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func TestLockAllFreesWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, t.TempDir(), Options{MaxWait: time.Second})
		unlock := mustLock(t, l, Key{Name: "b"})
		_, err := l.LockAll(t.Context(), Key{Name: "b"}, Key{Name: "a"}, Key{Name: "a"})
		timeout := new(TimeoutError)
		if !errors.As(err, &timeout) || timeout.Key != "b" {
			t.Fatalf("LockAll: %v", err)
		}
		mustLock(t, l, Key{Name: "a"})()
		unlock()
		all, err := l.LockAll(t.Context(), Key{Name: "b"}, Key{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		all()
	})
}

// startChild runs this test binary as another process that holds the lock.
func startChild(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := child(t, dir, modeHold)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "held <nil>\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// Processes that count in one file lose no number, although the lock's file comes and goes.
func TestProcessesCountTogether(t *testing.T) {
	dir := t.TempDir()
	const processes = 3
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			if out, err := child(t, dir, modeCount).CombinedOutput(); err != nil || string(out) != "counted <nil>\n" {
				t.Errorf("%s, %v", out, err)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "number"))
	if err != nil || string(text) != strconv.Itoa(processes*countTimes) {
		t.Errorf("counted to %s, %v", text, err)
	}
}

func TestAnotherProcessIsKilled(t *testing.T) {
	dir := t.TempDir()
	other := startChild(t, dir)
	l := locker(t, dir, Options{MaxWait: 20 * time.Millisecond})
	_, err := l.Lock(t.Context(), Key{Name: heldKey, Transient: true})
	timeout := new(TimeoutError)
	if !errors.As(err, &timeout) || timeout.Holder != "the child" {
		t.Fatalf("while the child holds it: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // says that it was killed
	l.maxWait = DefaultMaxWait
	mustLock(t, l, Key{Name: heldKey, Transient: true})()
	if left := names(t, dir); left != nil {
		t.Errorf("files left: %v", left)
	}
}

func TestOpenSweepsWhatTheKilledLeft(t *testing.T) {
	dir := t.TempDir()
	other := startChild(t, dir)
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	a := locker(t, dir, Options{})
	unlock := mustLock(t, a, Key{Name: "claim-live", Transient: true})
	if err := os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := locker(t, dir, Options{MaxWait: time.Millisecond})
	if diff := cmp.Diff([]string{"claim-live.lock", "foreign"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
	if _, err := b.Lock(t.Context(), Key{Name: "claim-live"}); err == nil {
		t.Error("the sweep freed a lock that is held")
	}
	unlock()
}

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := locker(t, dir, Options{Holder: "old instance"})
		b := locker(t, dir, Options{Holder: "new instance"})
		first, _, err := a.TryLease("publisher")
		if err != nil || first == nil {
			t.Fatal(first, err)
		}
		for _, l := range []*Locker{a, b} {
			lease, holder, err := l.TryLease("publisher")
			if lease != nil || err != nil || holder != "old instance" {
				t.Errorf("TryLease while it is held: %v, %q, %v", lease, holder, err)
			}
		}
		got := make(chan time.Time, 1)
		go func() {
			lease, err := b.WaitLease(t.Context(), "publisher")
			if err != nil {
				t.Error(err)
			} else {
				got <- time.Now()
				lease.Release()
				lease.Release()
			}
		}()
		time.Sleep(time.Hour) // far beyond MaxWait: a lease is waited for as long as it takes
		released := time.Now()
		first.Release()
		if late := (<-got).Sub(released); late > 100*time.Millisecond {
			t.Errorf("the lease was taken over %s late", late)
		}
		synctest.Wait()
		again, _, err := a.TryLease("publisher")
		if err != nil || again == nil {
			t.Fatalf("after all released: %v %v", again, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.WaitLease(ctx, "publisher"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitLease at the end of its context: %v", err)
		}
		again.Release()
	})
}

func TestNames(t *testing.T) {
	l := locker(t, t.TempDir(), Options{})
	for _, name := range []string{"", "../x", "a/b", ".hidden", "a\x00", strings.Repeat("x", 129)} {
		_, lockErr := l.Lock(t.Context(), Key{Name: name})
		_, _, leaseErr := l.TryLease(name)
		_, waitErr := l.WaitLease(t.Context(), name)
		for _, err := range []error{lockErr, leaseErr, waitErr} {
			if err == nil || !strings.Contains(err.Error(), "lock name") {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	mustLock(t, l, Key{Name: "gpu_0000-1a-00.0"})()
}

func TestFileSystemErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); err == nil {
		t.Error("Open of a file succeeds")
	}
	l := locker(t, filepath.Join(dir, "locks"), Options{})
	if err := os.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	_, err := l.Lock(t.Context(), Key{Name: "k"})
	_, _, leaseErr := l.TryLease("k")
	if !errors.Is(err, os.ErrNotExist) || !errors.Is(leaseErr, os.ErrNotExist) {
		t.Errorf("in a directory that vanished: %v, %v", err, leaseErr)
	}
	// The failed tries hold nothing.
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mustLock(t, l, Key{Name: "k"})()
}

func BenchmarkLock(b *testing.B) {
	for name, key := range map[string]Key{"claim": {Name: "c", Transient: true}, "gpu": {Name: "g"}} {
		b.Run(name, func(b *testing.B) {
			l := locker(b, b.TempDir(), Options{})
			for b.Loop() {
				mustLock(b, l, key)()
			}
		})
	}
}

// A tmpfs with a bounded number of inodes is full the moment its last file is made.
func TestAFullFileSystemDoesNotStopTransientLocks(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=8"); err != nil {
		t.Fatalf("mount a small tmpfs (the test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l := locker(t, filepath.Join(dir, "locks"), Options{MaxWait: time.Second})
	for i := range 16 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("filler", i)))
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	if _, err := l.Lock(t.Context(), Key{Name: "gpu"}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("a lock whose file cannot be made: %v, want ENOSPC with a hint", err)
	}
	unlock := mustLock(t, l, Key{Name: "claim_a", Transient: true})
	if _, err := l.Lock(t.Context(), Key{Name: "claim_a", Transient: true}); err == nil {
		t.Error("the same claim is locked twice")
	}
	unlock()
	mustLock(t, l, Key{Name: "claim_b", Transient: true})()
	if _, err := os.Stat(l.path(overflow)); err != nil {
		t.Errorf("the shared file is gone after its use: %v", err)
	}
}

func TestAReadOnlyFileSystemIsSaid(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mount a tmpfs (the test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l := locker(t, filepath.Join(dir, "locks"), Options{})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, lockErr := l.Lock(t.Context(), Key{Name: "gpu"})
	_, joinErr := Join(t.Context(), filepath.Join(dir, "present"))
	for name, err := range map[string]error{"Lock": lockErr, "Join": joinErr} {
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "mount it writable") {
			t.Errorf("%s: %v, want EROFS and what to do", name, err)
		}
	}
}

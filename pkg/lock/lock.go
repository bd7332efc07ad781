// Package lock gives locks by name that hold within one process and across processes: a rolling
// update runs two plugins on one node at once. It is for the prepare package (one lock a claim,
// one a physical GPU) and for deciding which of two instances publishes. It must not know what
// the names stand for.
//
// Across processes a lock is a flock on a file, so that the kernel frees it when its holder is
// killed. A flock that another process holds is tried again with short random pauses, bounded
// by the caller's context and by Options.MaxWait. Within a process nothing is polled: waiters
// queue first come, first served, and only the first in the queue tries the file.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	suffix = ".lock"

	// DefaultMaxWait leaves time for the work itself below the kubelet's 45 s.
	DefaultMaxWait = 30 * time.Second

	maxName = 128
)

// Key names a lock.
type Key struct {
	// Name is used as a file name: letters, digits, '-', '_' and inner dots.
	Name string
	// Transient locks have names without bound (one a claim): their file is removed with the
	// lock. The files of others stay, which saves making them again.
	Transient bool
}

// Options of a Locker. The zero value is usable.
type Options struct {
	// MaxWait bounds the wait for a lock when the caller's context does not end earlier;
	// 0 means DefaultMaxWait. Leases are not bounded by it.
	MaxWait time.Duration
	// Holder is what a waiter elsewhere is told about this process; "" means its process id
	// and host name (in a pod, the pod's name).
	Holder string
}

// Locker hands out the locks of one directory. All processes that name the same directory
// exclude each other.
type Locker struct {
	dir     string
	maxWait time.Duration
	holder  string

	mu     sync.Mutex
	queues map[string]*queue
}

// queue is the order within this process; it exists while the lock is held or waited for.
type queue struct {
	waiters []chan struct{}
}

// Open makes the directory where it is missing and removes files of transient locks that a
// killed process left behind.
func Open(dir string, opts Options) (*Locker, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the lock directory: %w", err)
	}
	l := &Locker{dir: dir, maxWait: cmp.Or(opts.MaxWait, DefaultMaxWait), holder: opts.Holder, queues: map[string]*queue{}}
	if l.holder == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name the holder of locks: %w", err)
		}
		l.holder = fmt.Sprintf("process %d on %s", os.Getpid(), host)
	}
	// Longer would not be read back whole.
	l.holder = l.holder[:min(len(l.holder), maxHolder-1)]
	if err := l.sweep(); err != nil {
		return l, err
	}
	if f, err := os.OpenFile(l.path(overflow), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		_ = f.Close()
	}
	return l, nil
}

// TimeoutError tells that a lock was not free in time.
type TimeoutError struct {
	Key    string
	Waited time.Duration
	// Holder describes who has the lock; "" when that is not known.
	Holder string
	// Err is the context's error, or context.DeadlineExceeded when MaxWait ran out.
	Err error
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("lock %s was not free after %s (held by %s): %v",
		e.Key, e.Waited.Round(time.Millisecond), cmp.Or(e.Holder, "an unknown holder"), e.Err)
}

func (e *TimeoutError) Unwrap() error { return e.Err }

// Lock waits for one lock. The returned function frees it and must be called exactly once.
// Errors: *TimeoutError, or that of the file system.
func (l *Locker) Lock(ctx context.Context, key Key) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.maxWait)
	defer cancel()
	h, err := l.acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return h.release, nil
}

// LockAll waits for several locks. They are taken in the order of their names whatever the
// order of the arguments, so that two callers never wait for each other; a name given twice
// counts once. On error none is held.
func (l *Locker) LockAll(ctx context.Context, keys ...Key) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.maxWait)
	defer cancel()
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.Name, b.Name) })
	keys = slices.CompactFunc(keys, func(a, b Key) bool { return a.Name == b.Name })
	held := make([]*hold, 0, len(keys))
	free := func() {
		for _, h := range slices.Backward(held) {
			h.release()
		}
	}
	for _, key := range keys {
		h, err := l.acquire(ctx, key)
		if err != nil {
			free()
			return nil, err
		}
		held = append(held, h)
	}
	return free, nil
}

// hold is a lock that is held.
type hold struct {
	locker *Locker
	key    Key
	file   *os.File
	// transient tells that the file goes with the lock.
	transient bool
}

func (h *hold) release() {
	closeLocked(h.file, h.transient)
	h.locker.leave(h.key.Name)
}

// acquire waits in the process's queue and then for the file.
func (l *Locker) acquire(ctx context.Context, key Key) (*hold, error) {
	if err := checkName(key.Name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &TimeoutError{Key: key.Name, Err: err}
	}
	start := time.Now()
	if err := l.enter(ctx, key.Name); err != nil {
		return nil, &TimeoutError{Key: key.Name, Waited: time.Since(start), Holder: l.holder, Err: err}
	}
	f, transient, err := l.lockFile(ctx, key, start)
	if err != nil {
		l.leave(key.Name)
		return nil, err
	}
	return &hold{locker: l, key: key, file: f, transient: transient}, nil
}

// enter waits until all that came earlier in this process have left.
func (l *Locker) enter(ctx context.Context, name string) error {
	l.mu.Lock()
	q, taken := l.queues[name]
	if !taken {
		l.queues[name] = &queue{}
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q.waiters = append(q.waiters, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(q.waiters, turn); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
		return ctx.Err()
	}
	// The turn came together with the end of the context: pass it on.
	l.pass(name, q)
	return ctx.Err()
}

// tryEnter takes the turn only where nobody has it.
func (l *Locker) tryEnter(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.queues[name]; taken {
		return false
	}
	l.queues[name] = &queue{}
	return true
}

func (l *Locker) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(name, l.queues[name])
}

// pass gives the turn to the next waiter, or forgets the queue. The caller holds mu.
func (l *Locker) pass(name string, q *queue) {
	if len(q.waiters) == 0 {
		delete(l.queues, name)
		return
	}
	close(q.waiters[0])
	q.waiters = q.waiters[1:]
}

// checkName keeps names from leaving the directory.
func checkName(name string) error {
	ok := name != "" && len(name) <= maxName && name[0] != '.'
	for i := range len(name) {
		c := name[i]
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.", c) >= 0)
	}
	if !ok {
		return fmt.Errorf("lock name %q: want 1 to %d letters, digits, '-', '_' and inner dots", name, maxName)
	}
	return nil
}

func (l *Locker) path(name string) string { return filepath.Join(l.dir, name+suffix) }

// Lease is a lock that is held for long, such as the right to publish of one of two instances.
type Lease struct {
	once sync.Once
	hold *hold
}

// Release gives the lease up; more calls do nothing. The kernel releases it when the process
// ends in whatever way.
func (l *Lease) Release() { l.once.Do(l.hold.release) }

// TryLease takes the lease where nobody has it. Without error and without lease, another has
// it, and holder says who where that is known.
func (l *Locker) TryLease(name string) (lease *Lease, holder string, err error) {
	if err := checkName(name); err != nil {
		return nil, "", err
	}
	if !l.tryEnter(name) {
		return nil, l.holder, nil
	}
	f, err := tryLockFile(l.path(name), l.holder)
	if err == nil {
		return &Lease{hold: &hold{locker: l, key: Key{Name: name}, file: f}}, "", nil
	}
	l.leave(name)
	if errors.Is(err, errHeld) {
		return nil, readHolder(l.path(name)), nil
	}
	return nil, "", err
}

// WaitLease waits until it has the lease or the context ends. Within the process waiters queue;
// a lease of another process is tried several times a second.
func (l *Locker) WaitLease(ctx context.Context, name string) (*Lease, error) {
	h, err := l.acquire(ctx, Key{Name: name})
	if err != nil {
		return nil, err
	}
	return &Lease{hold: h}, nil
}

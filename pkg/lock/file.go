package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The pauses between two tries of a file that another process holds. Random, so that a
	// poller of fixed rhythm never wins every time; the longest bounds how late a free lock is
	// noticed, the shortest how busy a short wait is.
	firstPause   = time.Millisecond
	longestPause = 50 * time.Millisecond

	// maxHolder bounds what is read back from a lock file.
	maxHolder = 256
)

var (
	errHeld = errors.New("held elsewhere")
	// errGone tells that the file was removed between opening and locking it.
	errGone = errors.New("the lock file was replaced")
)

// overflow is the one lock that stands in for all transient ones while the file system has no
// room for their files. It is made at Open.
const overflow = "overflow"

// noRoom tells whether a file could not be made for want of inodes or space.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// openError says what to do about a lock file that cannot be opened.
func openError(err error) error {
	hint := ""
	switch {
	case noRoom(err):
		hint = " (free space or inodes on its file system)"
	case errors.Is(err, unix.EROFS):
		hint = " (its file system is read-only: mount it writable or check the disk)"
	}
	return fmt.Errorf("open lock file: %w%s", err, hint)
}

// lockFile waits for the flock, and tells whether its file is to be removed with the lock. The
// caller has its turn within the process.
//
// Unprepare is what makes room again, so a full file system must not stop it: transient locks
// then share one file. Two processes, one of which got room for a file of its own meanwhile,
// would not exclude each other; within a process the queue still does.
func (l *Locker) lockFile(ctx context.Context, key Key, start time.Time) (f *os.File, transient bool, err error) {
	f, err = l.waitFile(ctx, key, l.path(key.Name), start)
	if noRoom(err) && key.Transient {
		f, err = l.waitFile(ctx, key, l.path(overflow), start)
		return f, false, err
	}
	return f, key.Transient, err
}

func (l *Locker) waitFile(ctx context.Context, key Key, path string, start time.Time) (*os.File, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		f, err := tryLockFile(path, l.holder)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errHeld) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, &TimeoutError{Key: key.Name, Waited: time.Since(start), Holder: readHolder(path), Err: ctx.Err()}
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// tryLockFile takes the flock or fails with errHeld. The file says who holds it.
func tryLockFile(path, holder string) (*os.File, error) {
	for {
		f, err := openAndLock(path)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		writeHolder(f, holder)
		return f, nil
	}
}

// openAndLock locks the file that has the name. A holder of a transient lock removes the file
// before it lets go: who opened it earlier then locks a file without a name, which excludes
// nobody. So the name is looked up again under the lock.
func openAndLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, openError(err)
	}
	fail := func(err error) (*os.File, error) { return nil, errors.Join(err, f.Close()) }
	if err := flock(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fail(errHeld)
		}
		return fail(fmt.Errorf("lock %s: %w", path, err))
	}
	if err := stillNamed(f, path); err != nil {
		return fail(err)
	}
	return f, nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// closeLocked frees a lock that is held. A transient file is removed first, while the lock
// keeps others from taking it for theirs; when that fails it is litter for the next sweep.
func closeLocked(f *os.File, transient bool) {
	if transient {
		_ = os.Remove(f.Name())
	}
	// The descriptor is gone whatever Close says, and the lock with it.
	_ = f.Close()
}

// writeHolder is only for messages: a lock whose holder could not be written is held all the
// same. The file is never cut to nothing first, since ext4 answers that by flushing it to the
// disk when it is closed; and not written where it says the same already.
func writeHolder(f *os.File, holder string) {
	buf := make([]byte, maxHolder)
	n, _ := f.ReadAt(buf, 0)
	if string(buf[:n]) == holder {
		return
	}
	_, _ = f.WriteAt([]byte(holder), 0)
	if n > len(holder) {
		_ = f.Truncate(int64(len(holder)))
	}
}

func readHolder(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, maxHolder)
	n, _ := f.Read(buf)
	return strings.ToValidUTF8(string(buf[:n]), "?")
}

// sweep removes lock files that nobody holds: those of transient locks whose holder was killed.
// The files of other locks are made again when they are needed.
func (l *Locker) sweep() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("list the lock directory: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if f, err := openAndLock(filepath.Join(l.dir, e.Name())); err == nil {
			closeLocked(f, true)
		}
	}
	return nil
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Presence is one process among those that share a directory. The kernel ends it when the
// process ends in whatever way.
type Presence struct {
	path string
	file *os.File
}

// joinPause is the longest pause between two tries of Join.
const joinPause = 20 * time.Millisecond

// Join makes this process present, by a shared lock of the file. It waits while another process
// is alone and cleans up, and then finds the file made anew.
func Join(ctx context.Context, path string) (*Presence, error) {
	for {
		f, err := tryJoin(path)
		if err == nil {
			return &Presence{path: path, file: f}, nil
		}
		if !errors.Is(err, errHeld) && !errors.Is(err, errGone) {
			return nil, err
		}
		timer := time.NewTimer(time.Duration(rand.Int64N(int64(joinPause))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("wait for a process that cleans up (%s): %w", path, ctx.Err())
		}
	}
}

func tryJoin(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, openError(err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	if err == nil {
		err = stillNamed(f, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// stillNamed fails with errGone when the path names another file than the open one, or none.
func stillNamed(f *os.File, path string) error {
	mine, err := f.Stat()
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	named, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, named) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}

// Alone tells whether no other process is present. If so, newcomers wait in Join until Leave,
// and the caller may remove the file with the rest. It is for a process that is about to leave:
// of two that ask at the same moment one may be told that it is alone, never both.
func (p *Presence) Alone() bool {
	fd := int(p.file.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return true
	}
	// The kernel drops the shared lock before it tries the exclusive one (flock(2)).
	_ = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	return false
}

// Leave ends the presence.
func (p *Presence) Leave() error { return p.file.Close() }

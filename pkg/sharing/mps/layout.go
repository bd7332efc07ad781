package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// Where a client finds its daemon, in its container as in the daemon's own view of the node.
// The first is CUDA's default, so that a program whose environment was cleared finds it too.
const (
	ClientPipeDir = "/tmp/nvidia-mps"
	ClientShmDir  = "/dev/shm"
)

// Variables of the CUDA driver.
const (
	EnvPipeDir = "CUDA_MPS_PIPE_DIRECTORY"
	EnvLogDir  = "CUDA_MPS_LOG_DIRECTORY"
)

// Layout is the directory of all that concerns MPS, below the plugin's data directory and at the
// same path for the plugin, the supervisor and the host.
type Layout string

// DirName is the name of that directory.
const DirName = "mps"

// Socket is where the supervisor listens.
func (l Layout) Socket() string { return filepath.Join(string(l), "supervisor.sock") }

// LifeLock is locked for as long as control daemons can live: see Alive.
func (l Layout) LifeLock() string { return filepath.Join(string(l), "life.lock") }

// Devices is the plugin's own directory: which claims use which device.
func (l Layout) Devices() string { return filepath.Join(string(l), "devices") }

// Daemons is the supervisor's own directory, with one for each daemon.
func (l Layout) Daemons() string { return filepath.Join(string(l), "daemons") }

// Daemon is the directory of one daemon.
func (l Layout) Daemon(name string) DaemonDir { return DaemonDir(filepath.Join(l.Daemons(), name)) }

// DaemonDir is the directory of one daemon.
type DaemonDir string

// Spec is the file that says what the daemon has to be; without it there must be none.
func (d DaemonDir) Spec() string { return filepath.Join(string(d), "spec.json") }

// Pipe is where clients reach the daemon.
func (d DaemonDir) Pipe() string { return filepath.Join(string(d), "pipe") }

// Log is where daemon and servers write their logs.
func (d DaemonDir) Log() string { return filepath.Join(string(d), "log") }

// Shm is the shared memory of server and clients: a file system of its own.
func (d DaemonDir) Shm() string { return filepath.Join(string(d), "shm") }

// Libraries has links to the GPU driver's libraries and to nothing else.
func (d DaemonDir) Libraries() string { return filepath.Join(string(d), "lib") }

// Alive tells whether control daemons can live: the first process of their container holds the
// lock and ends last. Without it there is no daemon, whatever the directories say.
func (l Layout) Alive() (bool, error) {
	f, err := os.OpenFile(l.LifeLock(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("see whether MPS control daemons can live: %w", err)
	}
	// Shared, so that two who ask do not take each other for the holder.
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	held := errors.Is(err, unix.EWOULDBLOCK)
	if held {
		err = nil
	}
	return held, errors.Join(err, f.Close())
}

// Remove removes the directory, unless control daemons can live or the plugin has a note of a device
// whose compute mode is still to be put back; removed is false then. It is for who knows that no
// claim uses MPS.
func (l Layout) Remove() (removed bool, err error) {
	if _, err := os.Lstat(string(l)); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	notes, err := filepath.Glob(filepath.Join(l.Devices(), "*.json"))
	if err != nil || len(notes) > 0 {
		return false, err
	}
	// Also where there is none: a container that starts meanwhile waits for the lock, or finds it
	// gone and makes another.
	f, err := os.OpenFile(l.LifeLock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, fmt.Errorf("remove what MPS control daemons left: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("lock %s: %w", l.LifeLock(), err)
	}
	if err := l.empty(); err != nil {
		return false, fmt.Errorf("remove what MPS control daemons left: %w", err)
	}
	return true, nil
}

// empty removes what is of this driver, the lock last: from then on it keeps nobody off, and what
// somebody puts there stays. So does what NVIDIA's driver of the same name has there for its daemons.
func (l Layout) empty() error {
	mounted, err := filepath.Glob(DaemonDir(filepath.Join(l.Daemons(), "*")).Shm())
	if err != nil {
		return err
	}
	for _, shm := range mounted {
		// What a container's end left on the node. Where it cannot be undone, removing says so.
		_ = unix.Unmount(shm, unix.MNT_DETACH)
	}
	for _, path := range []string{l.Socket(), l.Devices(), l.Daemons()} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := os.Remove(l.LifeLock()); err != nil {
		return err
	}
	if err := os.Remove(string(l)); !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// MaxSocketPath is the longest path of a unix socket: sun_path has 108 bytes, one for the NUL.
const MaxSocketPath = 107

// shmSize is what tmpfs takes.
var shmSize = regexp.MustCompile(`^([1-9][0-9]?%|100%|[1-9][0-9]{0,14}[kmgKMG]?)$`)

// ValidShmSize tells whether tmpfs takes the size of a shared memory: a percentage of the
// machine's memory, or bytes with k, m or g.
func ValidShmSize(size string) bool { return shmSize.MatchString(size) }

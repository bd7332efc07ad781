package simstate

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrIncompatible says that a file is not a state file of this layout.
var ErrIncompatible = errors.New("not a simulated node's state file of this version")

// ErrReadOnly says that a state file was opened for reading only.
var ErrReadOnly = errors.New("the state file is open for reading only")

// Size is the length of a state file in bytes.
const Size = int(unsafe.Sizeof(Node{}))

// File is a mapped state file. Its methods may be called from several goroutines.
type File struct {
	file     *os.File
	data     []byte
	writable bool
	mu       sync.Mutex
}

// Create writes node as a new state file at path. A file that is already there keeps
// its inode and is overwritten under the lock, so that processes that mapped it see the change.
func Create(path string, node *Node) error {
	node.Magic, node.LayoutVersion, node.Size = Magic, LayoutVersion, uint32(Size)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("create state file: %w", err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock state file %s: %w", path, err)
	}
	if err := file.Truncate(int64(Size)); err != nil {
		return fmt.Errorf("size state file %s: %w", path, err)
	}
	previous := make([]byte, unsafe.Sizeof(Node{}))
	if _, err := file.ReadAt(previous, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read state file %s: %w", path, err)
	}
	node.Generation = view(previous).Generation + 1
	node.InstanceID = rand.Uint64()
	if _, err := file.WriteAt(bytesOf(node), 0); err != nil {
		return fmt.Errorf("write state file %s: %w", path, err)
	}
	return nil
}

// Open maps the state file at path. Without write permission it is mapped for reading
// and Update gives ErrReadOnly.
func Open(path string) (*File, error) {
	writable := true
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		writable = false
		file, err = os.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open state file: %w", err)
	}
	data, err := mapFile(file, writable)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map state file %s: %w", path, err), file.Close())
	}
	return &File{file: file, data: data, writable: writable}, nil
}

func mapFile(file *os.File, writable bool) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(Size) {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrIncompatible, info.Size(), Size)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(int(file.Fd()), 0, Size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	n := view(data)
	if n.Magic != Magic || n.LayoutVersion != LayoutVersion || int(n.Size) != Size {
		err := fmt.Errorf("%w: magic %#x, layout %d, size %d", ErrIncompatible, n.Magic, n.LayoutVersion, n.Size)
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return data, nil
}

// Close unmaps the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return nil
	}
	err := unix.Munmap(f.data)
	f.data = nil
	return errors.Join(err, f.file.Close())
}

// Read calls fn with the live state under the lock; fn must not keep or change it.
func (f *File) Read(fn func(*Node) error) error {
	return f.locked(unix.LOCK_SH, fn)
}

// Update calls fn with the live state, exclusively among all processes, and counts the
// generation up when fn succeeds. What fn changed before an error stays changed.
func (f *File) Update(fn func(*Node) error) error {
	if !f.writable {
		return ErrReadOnly
	}
	return f.locked(unix.LOCK_EX, func(n *Node) error {
		if err := fn(n); err != nil {
			return err
		}
		atomic.AddUint64(&n.Generation, 1)
		return nil
	})
}

func (f *File) locked(how int, fn func(*Node) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return os.ErrClosed
	}
	fd := int(f.file.Fd())
	if err := flockRetry(fd, how); err != nil {
		return fmt.Errorf("lock state file: %w", err)
	}
	return errors.Join(fn(view(f.data)), unix.Flock(fd, unix.LOCK_UN))
}

// flockRetry takes a lock that is only ever held for microseconds; a signal may interrupt the wait.
func flockRetry(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Snapshot returns a copy of the state.
func (f *File) Snapshot() (*Node, error) {
	var out Node
	err := f.Read(func(n *Node) error {
		out = *n
		return nil
	})
	return &out, err
}

// Publish appends an event to the ring and wakes every process that sleeps on it. The
// receiver must be the live state, in Update.
func (n *Node) Publish(event Event) error {
	next := atomic.LoadUint32(&n.EventSeq)
	n.Events[next%MaxEvents] = event
	// The entry is whole before the number says so.
	atomic.StoreUint32(&n.EventSeq, next+1)
	const wake, everybody = 1, math.MaxInt32
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&n.EventSeq)), wake, everybody, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("wake waiters: %w", errno)
	}
	return nil
}

func view(data []byte) *Node { return (*Node)(unsafe.Pointer(unsafe.SliceData(data))) }

func bytesOf(n *Node) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(n)), Size) }

// String returns the text of a fixed field up to its first zero byte.
func String(field []byte) string {
	for i, c := range field {
		if c == 0 {
			return string(field[:i])
		}
	}
	return string(field)
}

// SetString writes text into a fixed field; text that does not fit with its final zero is an error.
func SetString(field []byte, text string) error {
	if len(text) >= len(field) {
		return fmt.Errorf("text of %d bytes does not fit in %d", len(text), len(field)-1)
	}
	clear(field)
	copy(field, text)
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package tracer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// session is a trace in the process that traces. All of it runs on one thread.
type session struct {
	plan  Plan
	ready bool // who started the trace is told that every thread is in it; no change counts before
	seen  int
	over  bool          // the one failure of a Once plan has been
	fails map[int]error // threads between the entry and the exit of a call that fails
	known map[int]bool  // threads, true once they run traced
	// held are threads that are stopped before their change, until then. They go on without it where
	// the trace ends first.
	held map[int]time.Time

	mu  sync.Mutex // of out
	out *json.Encoder
}

// trace attaches and works until the process or the input ends.
func trace(plan Plan, out io.Writer, in io.Reader) error {
	runtime.LockOSThread()
	s := &session{plan: plan, fails: map[int]error{}, known: map[int]bool{}, held: map[int]time.Time{}, out: json.NewEncoder(out)}
	if err := s.attach(); err != nil {
		return err
	}
	for slices.Contains(values(s.known), false) {
		if err := s.step(); err != nil {
			return err
		}
	}
	s.ready = true
	if _, err := fmt.Fprintln(out, ready); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		s.mu.Lock() // no line is cut
		os.Exit(0)  // which lets all threads go
	}()
	for {
		err := s.step()
		if errors.Is(err, unix.ECHILD) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func values(m map[int]bool) []bool {
	var all []bool
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// attach seizes every thread. New threads may come from one that is not seized yet, so it is
// repeated until none is new.
func (s *session) attach() error {
	for found := true; found; {
		found = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.plan.PID))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				return err
			}
			if _, ok := s.known[tid]; ok {
				continue
			}
			err = ptrace(unix.PTRACE_SEIZE, tid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return fmt.Errorf("attach to thread %d: %w", tid, err)
			}
			found = true
			s.known[tid] = false
			if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("interrupt thread %d: %w", tid, err)
			}
		}
	}
	return nil
}

func ptrace(request, tid int, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// step waits for one stop of a thread, handles it and lets the thread go on.
func (s *session) step() error {
	options := unix.WALL
	if len(s.held) > 0 {
		options |= unix.WNOHANG
		if err := s.release(); err != nil {
			return err
		}
	}
	var status unix.WaitStatus
	tid, err := unix.Wait4(-1, &status, options, nil)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err == nil && tid == 0 { // all others run
		time.Sleep(time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	if !status.Stopped() {
		delete(s.known, tid)
		delete(s.held, tid)
		return nil
	}
	s.known[tid] = true
	var deliver uintptr
	switch stop := status.StopSignal(); {
	case stop == unix.SIGTRAP|0x80:
		err = s.call(tid)
	case int(status)>>16 != 0: // an event of the trace: a new thread, an interrupt
	default:
		deliver = uintptr(stop)
	}
	if _, held := s.held[tid]; err == nil && !held {
		err = ptrace(unix.PTRACE_SYSCALL, tid, deliver)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil // it was killed meanwhile
	}
	return err
}

// release lets the threads go on that have waited long enough.
func (s *session) release() error {
	for tid, until := range s.held {
		if time.Now().Before(until) {
			continue
		}
		delete(s.held, tid)
		if err := ptrace(unix.PTRACE_SYSCALL, tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// callInfo is struct ptrace_syscall_info of linux/ptrace.h.
type callInfo struct {
	op     uint8
	_      [3]uint8
	_      uint32
	_, _   uint64
	number uint64
	args   [6]uint64
	_      uint64
}

const (
	callEntry = 1
	callExit  = 2
)

// call handles the entry or the exit of a system call.
func (s *session) call(tid int) error {
	var info callInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return errno
	}
	switch info.op {
	case callEntry:
		return s.entry(tid, &info)
	case callExit:
		if fail, ok := s.fails[tid]; ok {
			delete(s.fails, tid)
			return setResult(tid, fail)
		}
	}
	return nil
}

func (s *session) entry(tid int, info *callInfo) error {
	kind, path := s.change(tid, info)
	if kind == "" || !s.ready || !s.below(path) {
		return nil
	}
	s.seen++
	hit := s.plan.At > 0 && s.seen >= s.plan.At && !s.over &&
		(len(s.plan.Fails) == 0 || slices.Contains(s.plan.Fails, kind))
	s.mu.Lock()
	err := s.out.Encode(Change{Kind: kind, Path: path, Hit: hit})
	s.mu.Unlock()
	if err != nil || !hit {
		return err
	}
	s.over = s.plan.Once
	if s.plan.Delay > 0 {
		s.held[tid] = time.Now().Add(s.plan.Delay)
		return nil
	}
	if s.plan.Errno == 0 {
		return unix.Kill(s.plan.PID, unix.SIGKILL)
	}
	s.fails[tid] = s.plan.Errno
	return skipCall(tid)
}

func (s *session) below(path string) bool {
	return slices.ContainsFunc(s.plan.Dirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") || path == dir })
}

// change tells what a call changes: "" where it changes no file. Paths and numbers are those of
// the calls that the Go runtime makes; C code may make others.
func (s *session) change(tid int, info *callInfo) (Kind, string) {
	a := info.args
	switch info.number {
	case unix.SYS_OPENAT:
		if a[2]&unix.O_CREAT != 0 {
			return Create, s.path(tid, a[0], a[1])
		}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE:
		return Write, s.open(a[0])
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return Sync, s.open(a[0])
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return Rename, s.path(tid, a[2], a[3])
	case unix.SYS_UNLINKAT:
		return Remove, s.path(tid, a[0], a[1])
	case unix.SYS_MKDIRAT:
		return Mkdir, s.path(tid, a[0], a[1])
	}
	return "", ""
}

// open gives the path of an open file; "" where it has none.
func (s *session) open(fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", s.plan.PID, int32(fd)))
	if err != nil {
		return ""
	}
	return path
}

// path reads a path argument and makes it absolute.
func (s *session) path(tid int, dirfd, address uint64) string {
	text := readString(tid, uintptr(address))
	if filepath.IsAbs(text) || int32(dirfd) == unix.AT_FDCWD {
		return text
	}
	return filepath.Join(s.open(dirfd), text)
}

// readString reads up to the NUL, or to the end of the page that can be read.
func readString(tid int, address uintptr) string {
	buf := make([]byte, unix.PathMax)
	page := uintptr(os.Getpagesize())
	n := 0
	for n < len(buf) {
		room := min(int(page-(address+uintptr(n))%page), len(buf)-n)
		got, err := syscall.PtracePeekData(tid, address+uintptr(n), buf[n:n+room])
		if i := slices.Index(buf[n:n+got], 0); i >= 0 {
			return string(buf[:n+i])
		}
		n += got
		if err != nil || got < room {
			break
		}
	}
	return string(buf[:n])
}

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/procstat"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

// namePrefix is what the kernel shows of the names of the driver's programs, 15 bytes.
const namePrefix = "nvidia-cuda-mps"

// process is one process of a daemon.
type process struct {
	supervisor.Process
	// daemon tells the control daemon from servers and front ends.
	daemon bool
}

// processes lists what runs of the daemon with that directory. On a host with thousands of
// processes nearly all are passed over after a look at their short name.
func processes(dir string) []process {
	found, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range found {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := look(pid, dir); ok {
			out = append(out, p)
		}
	}
	return out
}

// look tells whether a process is one of the daemon. One that ends meanwhile, or has ended and
// waits for its parent, is none.
func look(pid int, dir string) (process, bool) {
	comm, err := os.ReadFile(procFile(pid, "comm"))
	if err != nil || !bytes.HasPrefix(comm, []byte(namePrefix)) {
		return process{}, false
	}
	environ, err := os.ReadFile(procFile(pid, "environ"))
	if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), envDaemon+"="+dir) {
		return process{}, false
	}
	cmdline, err := os.ReadFile(procFile(pid, "cmdline"))
	started, ok := startOf(pid)
	args := strings.Split(string(cmdline), "\x00")
	return process{
		Process: supervisor.Process{PID: pid, Started: started},
		daemon:  filepath.Base(args[0]) == Program && slices.Contains(args, "-d"),
	}, err == nil && ok
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// startOf reads when a process started, in ticks since boot.
func startOf(pid int) (uint64, bool) {
	stat, err := procstat.Read("/proc", pid)
	return stat.Started, err == nil
}

// poll is how late an end of the context is noticed by who waits for a process.
const poll = 200 * time.Millisecond

// open gives a file that stands for the process, or ok false where it has ended.
func open(p supervisor.Process) (fd int, ok bool, err error) {
	fd, err = unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("process %d: %w", p.PID, err)
	}
	// The number may be another process' since.
	if started, there := startOf(p.PID); !there || started != p.Started {
		return 0, false, unix.Close(fd)
	}
	return fd, true, nil
}

// Wait implements supervisor.Programs. The process need not be a child.
func (*Control) Wait(ctx context.Context, p supervisor.Process) error {
	fd, ok, err := open(p)
	if err != nil || !ok {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(poll.Milliseconds()))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// kill ends a process for good.
func (p process) kill() error {
	fd, ok, err := open(p.Process)
	if err != nil || !ok {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

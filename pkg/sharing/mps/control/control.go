package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/driverroot"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

// Program is the driver's control daemon and front end.
const Program = "nvidia-cuda-mps-control"

// envDaemon names, in the environment of every process of a daemon, its directory.
const envDaemon = "GPU_MPS_DAEMON"

// library is one that the servers cannot do without: where it is, the others are.
const library = "libcuda.so.1"

const (
	// commandTime bounds one command: a daemon answers at once or never.
	commandTime = 10 * time.Second
	// quitTime is how long a daemon may take to end by itself.
	quitTime = 2 * time.Second
	// killTime is how long killed processes may take to go.
	killTime = 5 * time.Second
)

// Control runs the programs of one driver root. It keeps nothing.
type Control struct {
	Layout mps.Layout
	// DriverRoot is the driver's tree as this process sees it.
	DriverRoot string
	// Self is this program: it is started again to enter a daemon's view of the file system, with
	// the arguments EnterArgs.
	Self string
	// ShmSize bounds each daemon's shared memory, in the form of tmpfs: "50%", "8g".
	ShmSize string
	// Env is added to the environment of the programs.
	Env []string
}

var _ supervisor.Programs = (*Control)(nil)

// Start implements supervisor.Programs.
func (c *Control) Start(ctx context.Context, name string, spec mps.Spec, limit func() error) (supervisor.Process, error) {
	if err := c.end(ctx, name); err != nil {
		return supervisor.Process{}, err
	}
	if err := c.makeDirs(name); err != nil {
		return supervisor.Process{}, err
	}
	args := []string{"-d"}
	if spec.MultiUser {
		args = append(args, "-M")
	}
	var uuids []string
	for _, d := range spec.Devices {
		uuids = append(uuids, d.UUID)
	}
	if _, err := c.run(ctx, name, "", []string{"CUDA_VISIBLE_DEVICES=" + strings.Join(uuids, ",")}, args...); err != nil {
		return supervisor.Process{}, errors.Join(err, c.end(context.WithoutCancel(ctx), name))
	}
	process, ok := c.Find(name)
	if !ok {
		return process, fmt.Errorf("%s -d reported success, but no such process runs%s", Program, c.logged(name))
	}
	if err := limit(); err != nil {
		return supervisor.Process{}, errors.Join(err, c.end(context.WithoutCancel(ctx), name))
	}
	return process, nil
}

// Command implements supervisor.Programs.
func (c *Control) Command(ctx context.Context, name, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	return c.run(ctx, name, line+"\n", nil)
}

// run runs the driver's program in the daemon's view and gives what it printed.
func (c *Control) run(ctx context.Context, name, stdin string, env []string, args ...string) (string, error) {
	dir := c.Layout.Daemon(name)
	program, err := driverroot.Find(c.DriverRoot, driverroot.ProgramDirs(), Program)
	if err != nil {
		return "", err
	}
	// A file, not a pipe: what a daemon inherits would keep a pipe open.
	out, err := os.CreateTemp(string(dir), ".out-")
	if err != nil {
		return "", fmt.Errorf("file for the output of %s: %w", Program, err)
	}
	defer func() { _ = errors.Join(out.Close(), os.Remove(out.Name())) }()
	cmd := exec.CommandContext(ctx, c.Self, append(EnterArgs(dir, program), args...)...)
	cmd.Env = append(append([]string{
		envDaemon + "=" + string(dir),
		mps.EnvPipeDir + "=" + mps.ClientPipeDir,
		mps.EnvLogDir + "=" + clientLogDir,
		"PATH=" + filepath.Dir(program) + ":/usr/bin:/bin",
		"LD_LIBRARY_PATH=" + dir.Libraries(),
	}, c.Env...), env...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = out, out
	// A session of its own: signals for the supervisor's are not for daemons.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Run()
	said, readErr := os.ReadFile(out.Name())
	text := string(bytes.TrimSpace(said))
	if err = errors.Join(context.Cause(ctx), err, readErr); err != nil {
		return text, fmt.Errorf("%s %s: %w: %q%s", Program, strings.TrimSpace(strings.Join(args, " ")+" "+stdin), err, text, c.logged(name))
	}
	return text, nil
}

// logLines is how much of a daemon's log goes into an error.
const logLines = 3

// logged quotes the end of a daemon's log, which says more than its exit.
func (c *Control) logged(name string) string {
	data, err := os.ReadFile(filepath.Join(c.Layout.Daemon(name).Log(), "control.log"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if err != nil || lines[0] == "" {
		return ""
	}
	return fmt.Sprintf("; control.log ends with %q", lines[max(0, len(lines)-logLines):])
}

// Find implements supervisor.Programs.
func (c *Control) Find(name string) (supervisor.Process, bool) {
	for _, p := range processes(string(c.Layout.Daemon(name))) {
		if p.daemon {
			return p.Process, true
		}
	}
	return supervisor.Process{}, false
}

// Remove implements supervisor.Programs.
func (c *Control) Remove(ctx context.Context, name string) error {
	if err := c.end(ctx, name); err != nil {
		return err
	}
	dir := c.Layout.Daemon(name)
	if err := unmount(dir.Shm()); err != nil {
		return err
	}
	return os.RemoveAll(string(dir))
}

// end ends all processes of a daemon: it is asked first, since its servers end with it then.
func (c *Control) end(ctx context.Context, name string) error {
	dir := string(c.Layout.Daemon(name))
	running := processes(dir)
	if len(running) == 0 {
		return nil
	}
	if _, ok := c.Find(name); ok {
		quit, cancel := context.WithTimeout(ctx, quitTime)
		if _, err := c.run(quit, name, "quit\n", nil); err == nil {
			c.waitAll(quit, running)
		}
		cancel()
	}
	kill, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	for {
		running = processes(dir)
		if len(running) == 0 {
			return nil
		}
		for _, p := range running {
			if err := p.kill(); err != nil {
				return err
			}
		}
		c.waitAll(kill, running)
		if err := kill.Err(); err != nil {
			return fmt.Errorf("%d processes of MPS control daemon %s do not go away: %w", len(running), name, err)
		}
	}
}

func (c *Control) waitAll(ctx context.Context, list []process) {
	for _, p := range list {
		_ = c.Wait(ctx, p.Process)
	}
}

// makeDirs makes a daemon's directory. What clients have mounted stays what it is.
func (c *Control) makeDirs(name string) error {
	dir := c.Layout.Daemon(name)
	for path, mode := range map[string]fs.FileMode{
		string(dir): 0o755, dir.Log(): 0o755, dir.Libraries(): 0o755,
		// Clients of every user come here.
		dir.Pipe(): 0o755, dir.Shm(): 0o1777,
	} {
		if err := os.MkdirAll(path, mode); err != nil {
			return fmt.Errorf("make the directory of MPS control daemon %s: %w", name, err)
		}
	}
	return errors.Join(empty(dir.Pipe()), mountShm(dir.Shm(), c.ShmSize), c.linkLibraries(dir))
}

// empty removes the sockets of a daemon that has ended.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// linkLibraries makes links to the driver's libraries, and to nothing else of the host: its C
// library beside the loader of this image would end every program.
func (c *Control) linkLibraries(dir mps.DaemonDir) error {
	found, err := driverroot.Find(c.DriverRoot, driverroot.LibraryDirs(), library)
	if err != nil {
		return err
	}
	if err := empty(dir.Libraries()); err != nil {
		return err
	}
	for _, pattern := range []string{"libcuda.so*", "libnvidia-*.so*"} {
		libraries, err := filepath.Glob(filepath.Join(filepath.Dir(found), pattern))
		if err != nil {
			return err
		}
		for _, l := range libraries {
			if err := os.Symlink(l, filepath.Join(dir.Libraries(), filepath.Base(l))); err != nil {
				return fmt.Errorf("link a library of the GPU driver: %w", err)
			}
		}
	}
	return nil
}

// mountShm makes the file system of a daemon's shared memory. It stays over the daemon's end,
// since containers have it mounted.
func mountShm(dir, size string) error {
	if mounted, err := isMountPoint(dir); err != nil || mounted {
		return err
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size="+size); err != nil {
		return fmt.Errorf("mount the shared memory %s with size=%s: %w", dir, size, err)
	}
	return nil
}

// isMountPoint tells whether a directory is on another file system than its parent.
func isMountPoint(dir string) (bool, error) {
	var here, parent unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(filepath.Dir(dir), &parent)); err != nil {
		return false, fmt.Errorf("see whether %s is mounted: %w", dir, err)
	}
	return here.Dev != parent.Dev, nil
}

func unmount(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount the shared memory %s: %w", dir, err)
	}
	return nil
}

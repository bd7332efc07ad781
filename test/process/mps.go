package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// DaemonVariable names the executable of the supervisor of MPS control daemons, for every Bed of
// the process.
const DaemonVariable = "PROCESS_MPS_DAEMON"

// BuildDaemon is Build for that executable.
func BuildDaemon(ctx context.Context, dir string, flags ...string) error {
	if os.Getenv(DaemonVariable) != "" {
		return nil
	}
	path := filepath.Join(dir, "gpu-mps-daemon")
	args := append([]string{"build", "-o", path}, flags...)
	if out, err := exec.CommandContext(ctx, "go", append(args, "github.com/gpu-dra/driver/cmd/gpu-mps-daemon")...).CombinedOutput(); err != nil {
		return fmt.Errorf("build gpu-mps-daemon: %w\n%s", err, out)
	}
	return os.Setenv(DaemonVariable, path)
}

// MPSPod is the container of the supervisor of MPS control daemons. Daemons see a /dev/shm and a
// /tmp of their own, so no Bed that has one may lie there.
type MPSPod struct {
	bed *Bed
	cmd *exec.Cmd
}

// MPSDir is the directory of the supervisor.
func (b *Bed) MPSDir() string { return filepath.Join(b.DataDir(), "mps") }

// StartMPS runs the supervisor's container, and waits for nothing.
func (b *Bed) StartMPS() *MPSPod {
	b.t.Helper()
	check(b.t, os.MkdirAll(b.DataDir(), 0o755))
	log, err := os.Create(filepath.Join(b.t.TempDir(), "mps.log"))
	check(b.t, err)
	p := &MPSPod{bed: b, cmd: exec.CommandContext(context.WithoutCancel(b.t.Context()), os.Getenv(DaemonVariable),
		"--dir="+b.MPSDir(), "--driver-root-mount="+b.Node.DriverRoot(),
		"--shm-size=1m", "--boot-id="+filepath.Join(b.Node.ProcRoot(), "sys/kernel/random/boot_id"))}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(b.t, p.cmd.Start())
	b.t.Cleanup(func() {
		p.End()
		// Shared memory is a file system of its own.
		mounted, err := filepath.Glob(filepath.Join(b.MPSDir(), "daemons/*/shm"))
		check(b.t, err)
		for _, m := range mounted {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
		if text, err := os.ReadFile(log.Name()); b.t.Failed() && err == nil {
			b.t.Logf("log of the supervisor:\n%s", text)
		}
	})
	return p
}

// End ends the container as the kubelet does, with everything in it.
func (p *MPSPod) End() {
	p.bed.t.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	check(p.bed.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		p.bed.t.Errorf("the supervisor's container ended with %v", err)
	}
}

// Supervisor is the process that takes orders; it is waited for.
func (p *MPSPod) Supervisor() int {
	p.bed.t.Helper()
	found := 0
	p.bed.Eventually("a supervisor", func() error {
		for _, child := range childrenOf(p.cmd.Process.Pid) {
			line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(child), "cmdline"))
			if err == nil && strings.Contains(string(line), "\x00supervise\x00") {
				found = child
				return nil
			}
		}
		return errors.New("no such child")
	})
	return found
}

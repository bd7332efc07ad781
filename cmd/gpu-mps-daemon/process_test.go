package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/control"
	"github.com/gpu-dra/driver/test/mpsdaemon"
)

// build builds the program once for all tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/var/tmp", "mps-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "gpu-mps-daemon")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return program, mpsdaemon.DriverRoot(context.Background(), filepath.Join(dir, "driver"))
})

func TestMain(m *testing.M) {
	code := m.Run()
	if program, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// pod is a running container of control daemons.
type pod struct {
	t       *testing.T
	program string
	driver  string
	dir     string
	layout  mps.Layout
	client  mps.Client
	cmd     *exec.Cmd
	output  *bytes.Buffer
	done    chan struct{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPod starts one with a driver root of its own, outside of what daemons see differently.
func newPod(t *testing.T, faults ...mpsdaemon.Fault) *pod {
	t.Helper()
	program, err := build()
	must(t, err)
	dir, err := os.MkdirTemp("/var/tmp", "mps-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	p := &pod{t: t, program: program, driver: filepath.Join(dir, "driver"), dir: dir, layout: mps.Layout(filepath.Join(dir, "mps"))}
	must(t, os.CopyFS(p.driver, os.DirFS(filepath.Join(filepath.Dir(program), "driver"))))
	must(t, os.Chmod(filepath.Join(p.driver, "usr/bin", mpsdaemon.Program), 0o755))
	must(t, mpsdaemon.SetFaults(p.driver, faults...))
	p.client = mps.Client{Layout: p.layout, Patience: time.Minute}
	p.setBoot("boot-1")
	p.start()
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("output:\n%s", p.output)
		}
		// What the last daemon had mounted stays for its clients.
		mounted, err := filepath.Glob(filepath.Join(string(p.layout), "daemons/*/shm"))
		must(t, err)
		for _, m := range mounted {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
	})
	return p
}

func (p *pod) setBoot(id string) {
	p.t.Helper()
	must(p.t, os.WriteFile(filepath.Join(p.dir, "boot_id"), []byte(id+"\n"), 0o644))
}

func (p *pod) start() {
	p.t.Helper()
	p.output, p.done = &bytes.Buffer{}, make(chan struct{})
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), p.program, "--dir="+string(p.layout), "--driver-root-mount="+p.driver, "--shm-size=1m", "--boot-id="+filepath.Join(p.dir, "boot_id"))
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	must(p.t, p.cmd.Start())
}

// end ends the pod as the kubelet does.
func (p *pod) end() {
	p.t.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the first process: %v", err)
	}
}

func spec(threads int, memory int64) mps.Spec {
	return mps.Spec{Devices: []mps.Device{{UUID: "GPU-1", PinnedMemoryMiB: memory}}, ActiveThreadPercentage: &threads, MultiUser: true}
}

func (p *pod) ensure(name string, s mps.Spec) mps.Status {
	p.t.Helper()
	must(p.t, p.client.Ensure(p.t.Context(), name, s))
	return p.status(name)
}

func (p *pod) status(name string) mps.Status {
	p.t.Helper()
	list, err := p.client.List(p.t.Context())
	must(p.t, err)
	for _, s := range list {
		if s.Name == name {
			return s
		}
	}
	return mps.Status{}
}

// ask has the daemon carry out a command, as the supervisor does.
func (p *pod) ask(name, line string) string {
	p.t.Helper()
	c := control.Control{Layout: p.layout, DriverRoot: p.driver, Self: p.program}
	out, err := c.Command(p.t.Context(), name, line)
	must(p.t, err)
	return out
}

func (p *pod) wantLimits(name, threads, memory string) {
	p.t.Helper()
	if got := p.ask(name, "get_default_active_thread_percentage"); got != threads {
		p.t.Errorf("threads %q, want %q", got, threads)
	}
	if got := p.ask(name, "get_default_device_pinned_mem_limit 0"); got != memory {
		p.t.Errorf("memory %q, want %q", got, memory)
	}
}

// until waits for what comes by itself.
func (p *pod) until(what string, is func() bool) {
	p.t.Helper()
	for tick := time.NewTicker(5 * time.Millisecond); !is(); {
		select {
		case <-tick.C:
		case <-p.t.Context().Done():
			p.t.Fatalf("never: %s", what)
		}
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// running lists the processes of a daemon.
func (p *pod) running(name string) []int {
	p.t.Helper()
	var out []int
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	must(p.t, err)
	for _, f := range found {
		environ, _ := os.ReadFile(f)
		if slices.Contains(strings.Split(string(environ), "\x00"), "GPU_MPS_DAEMON="+string(p.layout.Daemon(name))) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			must(p.t, err)
			out = append(out, pid)
		}
	}
	return out
}

// supervisor is the process that takes orders.
func (p *pod) supervisor() int {
	p.t.Helper()
	pid := 0
	p.until("a supervisor", func() bool {
		found, err := filepath.Glob("/proc/[0-9]*/cmdline")
		must(p.t, err)
		for _, f := range found {
			line, _ := os.ReadFile(f)
			args := strings.Split(string(line), "\x00")
			if len(args) > 1 && args[1] == "supervise" && slices.Contains(args, "--dir="+string(p.layout)) {
				pid, err = strconv.Atoi(filepath.Base(filepath.Dir(f)))
				must(p.t, err)
				return true
			}
		}
		return false
	})
	return pid
}

// A daemon has what was asked for, is shared by who asks for the same, and leaves nothing behind.
func TestLifeOfADaemon(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	first := p.ensure("gpu-a", spec(25, 2048))
	p.wantLimits("gpu-a", "25.0", "2048M")
	for name, want := range map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps", "LD_LIBRARY_PATH": p.layout.Daemon("gpu-a").Libraries()} {
		if got := p.ask("gpu-a", "env "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(first.PID), "cmdline"))
	must(t, err)
	if !slices.Contains(strings.Split(string(line), "\x00"), "-M") {
		t.Errorf("command line %q lets one user in", line)
	}
	if again := p.ensure("gpu-a", spec(25, 2048)); again.PID != first.PID {
		t.Errorf("another daemon: %+v, before %+v", again, first)
	}
	var shm unix.Statfs_t
	must(t, unix.Statfs(p.layout.Daemon("gpu-a").Shm(), &shm))
	if shm.Type != unix.TMPFS_MAGIC || shm.Blocks*uint64(shm.Bsize) != 1<<20 {
		t.Errorf("shared memory is of type %x with %d bytes", shm.Type, shm.Blocks*uint64(shm.Bsize))
	}
	if ours, err := os.ReadDir("/tmp/nvidia-mps"); err != nil || len(ours) > 0 {
		t.Errorf("the machine sees the daemon's pipes: %v, %v", ours, err)
	}

	p.ensure("gpu-b", spec(50, 0))
	p.ask("gpu-a", "start_server")
	must(t, p.client.Stop(t.Context(), "gpu-a"))
	if left := p.running("gpu-a"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if _, err := os.Stat(string(p.layout.Daemon("gpu-a"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	must(t, p.client.Stop(t.Context(), "gpu-a"))
	p.wantLimits("gpu-b", "50.0", "")
}

// Whoever kills a supervisor ends nothing: daemons and servers go on under the next.
func TestKilledSupervisor(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	before := p.ensure("gpu-a", spec(25, 2048))
	server, err := strconv.Atoi(p.ask("gpu-a", "start_server"))
	must(t, err)
	for range 3 {
		pid := p.supervisor()
		must(t, unix.Kill(pid, unix.SIGKILL))
		p.until("the supervisor is gone", func() bool { return !alive(pid) })
		if after := p.ensure("gpu-a", spec(25, 2048)); after.PID != before.PID || after.Started != before.Started || !alive(server) {
			t.Fatalf("daemon %+v, before %+v, server lives: %t", after, before, alive(server))
		}
	}
	must(t, p.client.Stop(t.Context(), "gpu-a"))
	if left := p.running("gpu-a"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// A daemon that dies comes back with its limits, also one that died without a supervisor.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	before := p.ensure("gpu-a", spec(25, 2048))
	server, err := strconv.Atoi(p.ask("gpu-a", "start_server"))
	must(t, err)
	must(t, unix.Kill(before.PID, unix.SIGKILL))
	p.until("another daemon", func() bool { s := p.status("gpu-a"); return s.Ready && s.PID != before.PID })
	p.wantLimits("gpu-a", "25.0", "2048M")
	if alive(server) {
		t.Error("a server without its daemon keeps the device")
	}

	between := p.status("gpu-a")
	if between.Restarts != 1 {
		t.Errorf("%d restarts", between.Restarts)
	}
	supervisor := p.supervisor()
	must(t, unix.Kill(supervisor, unix.SIGSTOP))
	p.until("the supervisor stands still", func() bool { return stopped(t, supervisor) })
	must(t, unix.Kill(between.PID, unix.SIGKILL))
	must(t, unix.Kill(supervisor, unix.SIGKILL))
	p.until("a third daemon", func() bool { s := p.status("gpu-a"); return s.Ready && s.PID != between.PID })
	if n := p.status("gpu-a").Restarts; n != 2 {
		t.Errorf("%d restarts", n)
	}
	p.wantLimits("gpu-a", "25.0", "2048M")
}

// stopped tells whether every thread of a process stands still: each does so in its own time.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	must(t, err)
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		must(t, err)
		if !strings.Contains(string(status), "\nState:\tT") {
			return false
		}
	}
	return len(threads) > 0
}

// With its pod everything ends, and another pod starts what is still wanted. After a reboot it is
// wanted again only when somebody asks.
func TestEndOfThePod(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.ensure("gpu-a", spec(25, 2048))
	if is, err := p.layout.Alive(); !is || err != nil {
		t.Errorf("alive: %t, %v", is, err)
	}
	p.end()
	if left := p.running("gpu-a"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if is, err := p.layout.Alive(); is || err != nil {
		t.Errorf("alive: %t, %v", is, err)
	}
	p.start()
	p.until("the daemon is back", func() bool { return p.status("gpu-a").Ready })
	p.wantLimits("gpu-a", "25.0", "2048M")

	p.end()
	p.setBoot("boot-2")
	p.start()
	if s := p.status("gpu-a"); s.Ready || s.PID != 0 || !strings.Contains(s.Message, "reboot") {
		t.Errorf("after the reboot: %+v", s)
	}
	p.ensure("gpu-a", spec(30, 0))
	p.wantLimits("gpu-a", "30.0", "")
}

// What does not get ready is told with its reason and leaves nothing, so that trying again works.
func TestNeverReady(t *testing.T) {
	for fault, says := range map[mpsdaemon.Fault]string{
		mpsdaemon.FailsToStart:  "told to fail",
		mpsdaemon.IgnoresLimits: "did not take",
		mpsdaemon.NeverAnswers:  "does not answer",
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			p := newPod(t, fault)
			err := p.client.Ensure(t.Context(), "gpu-a", spec(25, 2048))
			var refused *mps.RefusedError
			if !errors.As(err, &refused) || refused.Invalid || !strings.Contains(err.Error(), says) {
				t.Errorf("%v does not say %q", err, says)
			}
			if left := p.running("gpu-a"); len(left) > 0 || p.status("gpu-a").Name != "" {
				t.Errorf("processes %v and %+v are left", left, p.status("gpu-a"))
			}
			must(t, mpsdaemon.SetFaults(p.driver))
			p.ensure("gpu-a", spec(25, 2048))
		})
	}
}

// One that does not end when it is asked is killed.
func TestWillNotQuit(t *testing.T) {
	t.Parallel()
	p := newPod(t, mpsdaemon.WillNotQuit)
	p.ensure("gpu-a", spec(25, 0))
	must(t, p.client.Stop(t.Context(), "gpu-a"))
	if left := p.running("gpu-a"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// The probe's answer is that of the supervisor.
func TestCheck(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	check := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), p.program, "check", "--dir="+string(p.layout)).CombinedOutput()
		return string(out), err
	}
	p.until("a supervisor that answers", func() bool { _, err := check(); return err == nil })
	before := p.ensure("gpu-a", spec(25, 0))
	must(t, mpsdaemon.SetFaults(p.driver, mpsdaemon.FailsToStart))
	must(t, unix.Kill(before.PID, unix.SIGKILL))
	p.until("the check tells of the daemon", func() bool {
		out, err := check()
		return err != nil && strings.Contains(out, "gpu-a") && strings.Contains(out, "told to fail")
	})
	must(t, mpsdaemon.SetFaults(p.driver))
	p.until("a daemon that serves", func() bool { _, err := check(); return err == nil })
}

func TestWrongSettings(t *testing.T) {
	for name, c := range map[string]struct{ args, word string }{
		"relative directory": {"--dir=mps", "--dir"},
		"long directory":     {"--dir=/" + strings.Repeat("x", 100), "107"},
		"size":               {"--shm-size=many", "--shm-size"},
		"driver root":        {"--driver-root-mount=x", "--driver-root-mount"},
		"argument":           {"other", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command("v1")
			cmd.SetArgs([]string{c.args})
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.word) {
				t.Errorf("error %v does not name %s", err, c.word)
			}
		})
	}
}

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-dra/driver/test/loopback"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// Plugin is one run of the plugin's process.
type Plugin struct {
	bed    *Bed
	cmd    *exec.Cmd
	log    logBuffer
	exited chan struct{}
	err    error // of the process, when exited is closed
	// PodUID is what the plugin was told.
	PodUID string
	// HTTP and Health are the addresses of its probes.
	HTTP, Health string
	// Started is when the process was.
	Started time.Time
}

// Setting changes how a plugin is run.
type Setting func(*run)

type run struct {
	binary string
	flags  map[string]string
}

// Flag sets a flag, without its dashes, or another value for one.
func Flag(name, value string) Setting { return func(r *run) { r.flags[name] = value } }

// Instance runs the plugin as another pod of its DaemonSet.
func Instance(podUID string) Setting { return Flag("pod-uid", podUID) }

// Binary runs another executable, such as that of an earlier release.
func Binary(path string) Setting { return func(r *run) { r.binary = path } }

// Start runs the plugin and waits until the kubelet has registered it.
func (b *Bed) Start(settings ...Setting) *Plugin {
	b.t.Helper()
	p := b.Run(settings...)
	p.WaitRegistered()
	return p
}

// Run runs the plugin and waits for nothing. It is killed at the latest when the test ends; its
// log is shown where the test failed.
func (b *Bed) Run(settings ...Setting) *Plugin {
	b.t.Helper()
	r := b.command(settings...)
	p := &Plugin{
		bed: b, cmd: exec.CommandContext(b.t.Context(), r.binary, r.args()...), exited: make(chan struct{}),
		PodUID: r.flags["pod-uid"], HTTP: r.flags["http-address"], Health: r.flags["grpc-health-address"], Started: time.Now(),
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=100")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		b.t.Fatalf("start the plugin: %v", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	b.t.Cleanup(func() {
		p.Kill()
		if b.t.Failed() {
			b.t.Logf("log of the plugin, process %d:\n%s", p.cmd.Process.Pid, p.Log())
		}
		if strings.Contains(p.Log(), "DATA RACE") {
			b.t.Errorf("the race detector stopped the plugin:\n%s", p.Log())
		}
	})
	return p
}

// Cleanup runs the plugin's command of that name, with more flags, and gives what it printed.
func (b *Bed) Cleanup(flags ...string) (string, error) {
	b.t.Helper()
	r := b.command()
	delete(r.flags, "v")
	cmd := exec.CommandContext(b.Context(), r.binary, append(append([]string{"cleanup"}, r.args()...), flags...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// MIGLayout runs the plugin's command "mig-layout" as somebody in its container does, and gives what
// it printed.
func (b *Bed) MIGLayout(deed string, flags ...string) (string, error) {
	b.t.Helper()
	r := b.command()
	args := []string{"mig-layout", deed}
	for _, name := range []string{"driver-root-mount", "proc-root-mount", "sys-root-mount", "kubelet-plugins-dir"} {
		args = append(args, "--"+name+"="+r.flags[name])
	}
	out, err := exec.CommandContext(b.Context(), r.binary, append(args, flags...)...).CombinedOutput()
	return string(out), err
}

// args are the flags on a command line.
func (r *run) args() []string {
	var args []string
	for name, value := range r.flags {
		args = append(args, "--"+name+"="+value)
	}
	return args
}

// command is how the plugin is run on this bed.
func (b *Bed) command(settings ...Setting) *run {
	host := loopback.Host()
	r := &run{binary: os.Getenv(BinaryVariable), flags: map[string]string{
		"node-name": NodeName, "pod-uid": b.podUID, "kubeconfig": b.kubeconfig(),
		"driver-root": b.Node.DriverRoot(), "driver-root-mount": b.Node.DriverRoot(),
		"dev-root": b.devDir(), "dev-root-mount": b.devDir(),
		"proc-root-mount": b.Node.ProcRoot(), "sys-root-mount": b.Node.SysRoot(),
		"kubelet-plugins-dir": b.pluginsDir(), "kubelet-registry-dir": b.RegistryDir(),
		"cdi-dir": b.CDIDir(), "cdi-hook": b.hook(),
		"http-address": net.JoinHostPort(host, "8080"), "grpc-health-address": net.JoinHostPort(host, "8081"),
		"holder-wait": "2s", "v": "2",
	}}
	for _, set := range settings {
		set(r)
	}
	return r
}

func (b *Bed) devDir() string { return filepath.Join(b.Node.DevRoot(), "dev") }

// PID is the process's.
func (p *Plugin) PID() int { return p.cmd.Process.Pid }

// Log is what the process has printed so far.
func (p *Plugin) Log() string { return p.log.String() }

// Running tells whether the process lives.
func (p *Plugin) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Kill ends the process at once, and returns when it has ended.
func (p *Plugin) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// KillAll is Kill of a container: the programs that the process runs end with it.
func (p *Plugin) KillAll() {
	children := childrenOf(p.PID())
	p.Kill()
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended
	}
}

// childrenOf lists the children of a process. One that begins meanwhile may be missing.
func childrenOf(pid int) (children []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is good
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // it may have ended
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// Signal sends SIGTERM, as the kubelet does to a pod's container.
func (p *Plugin) Signal() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// Terminate sends SIGTERM and waits for the end, which must be a clean one.
func (p *Plugin) Terminate() {
	p.bed.t.Helper()
	p.Signal()
	if err := p.WaitExit(); err != nil {
		p.bed.t.Errorf("the plugin ended after SIGTERM with %v", err)
	}
}

// ErrStillRunning says that the process did not end in time.
var ErrStillRunning = errors.New("the plugin still runs")

// WaitExit waits for the end of the process and returns its error.
func (p *Plugin) WaitExit() error {
	select {
	case <-p.exited:
		return p.err
	case <-time.After(patience):
		return ErrStillRunning
	}
}

// WaitRegistered waits until the kubelet has registered this process and is connected to it.
func (p *Plugin) WaitRegistered() {
	p.bed.t.Helper()
	p.bed.Eventually("registration", func() error {
		if !p.Running() {
			p.bed.t.Fatalf("the plugin ended before it was registered: %v", p.err)
		}
		return p.registered()
	})
}

func (p *Plugin) registered() error {
	_, body, err := p.Get("/readyz")
	if err != nil {
		return err
	}
	if !strings.Contains(body, "[+] kubelet registration") {
		return errors.New(body)
	}
	for _, i := range p.bed.Kubelet.Instances(Driver) {
		if i.Endpoint == p.Socket() && i.Connected {
			return nil
		}
	}
	return fmt.Errorf("the kubelet has %+v", p.bed.Kubelet.Instances(Driver))
}

// WaitReady waits until /readyz says so: registered, and the slices are as they should be.
func (p *Plugin) WaitReady() {
	p.bed.t.Helper()
	p.bed.Eventually("readiness", func() error {
		code, body, err := p.Get("/readyz")
		if err == nil && code != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
}

// Socket is the path of its DRA socket.
func (p *Plugin) Socket() string {
	name := "dra.sock"
	if p.PodUID != "" {
		name = "dra-" + p.PodUID + ".sock"
	}
	return filepath.Join(p.bed.DataDir(), name)
}

// Get asks its HTTP endpoint.
func (p *Plugin) Get(path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// Trace starts to trace the process; what the plan leaves open is filled in.
func (p *Plugin) Trace(plan tracer.Plan) *tracer.Tracer {
	p.bed.t.Helper()
	plan.PID = p.PID()
	if plan.Dirs == nil {
		plan.Dirs = p.bed.StateDirs()
	}
	t, err := tracer.Start(p.bed.t.Context(), plan)
	check(p.bed.t, err)
	return t
}

// logBuffer may be written and read at once.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

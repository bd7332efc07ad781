package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// proc is one process of a daemon; limits are what it was told.
type proc struct {
	supervisor.Process
	limits map[string]string
	exited chan struct{}
}

var (
	errStart = errors.New("told to fail")
	errMute  = errors.New("no answer")
)

// programs are daemons in memory. They outlive supervisors.
type programs struct {
	layout mps.Layout

	mu      sync.Mutex
	running map[string]*proc
	starts  int
	// failStarts is how many starts fail; mute and deaf daemons do not answer or do not keep limits.
	failStarts int
	mute, deaf bool
	failRemove error
}

func newPrograms(t testing.TB) *programs {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &programs{layout: mps.Layout(dir), running: map[string]*proc{}}
}

// end ends a daemon; the caller has mu.
func (p *programs) end(name string) {
	if old, ok := p.running[name]; ok {
		close(old.exited)
		delete(p.running, name)
	}
}

func (p *programs) kill(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(name)
}

// limits gives what the running daemon was told; nil where none runs.
func (p *programs) limits(name string) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.running[name]; ok {
		return r.limits
	}
	return nil
}

func (p *programs) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *programs) Start(_ context.Context, name string, _ mps.Spec, limit func() error) (supervisor.Process, error) {
	process, err := p.listen(name)
	if err != nil {
		return process, err
	}
	if err := limit(); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.end(name)
		return supervisor.Process{}, err
	}
	return process, nil
}

func (p *programs) listen(name string) (supervisor.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(name)
	if p.failStarts > 0 {
		p.failStarts--
		return supervisor.Process{}, errStart
	}
	p.starts++
	made := &proc{Process: supervisor.Process{PID: 100 + p.starts, Started: uint64(p.starts)}, limits: map[string]string{}, exited: make(chan struct{})}
	p.running[name] = made
	return made.Process, nil
}

func (p *programs) Command(_ context.Context, name, lines string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.running[name]
	if !ok || p.mute {
		return "", errMute
	}
	var out strings.Builder
	for line := range strings.Lines(lines) {
		words := append(strings.Fields(line), "", "")
		switch words[0] {
		case "get_server_list":
		case "set_default_active_thread_percentage":
			if !p.deaf {
				r.limits["threads"] = words[1] + ".0"
			}
			out.WriteString(words[1] + ".0\n")
		case "set_default_device_pinned_mem_limit":
			if !p.deaf {
				r.limits[words[1]] = words[2]
			}
		case "get_default_active_thread_percentage":
			out.WriteString(r.limits["threads"] + "\n")
		case "get_default_device_pinned_mem_limit":
			out.WriteString(r.limits[words[1]] + "\n")
		default:
			return "", fmt.Errorf("what is %q", line)
		}
	}
	return out.String(), nil
}

func (p *programs) Find(name string) (supervisor.Process, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.running[name]; ok {
		return r.Process, true
	}
	return supervisor.Process{}, false
}

func (p *programs) Wait(ctx context.Context, process supervisor.Process) error {
	p.mu.Lock()
	exited := make(chan struct{})
	close(exited)
	for _, r := range p.running {
		if r.Process == process {
			exited = r.exited
		}
	}
	p.mu.Unlock()
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *programs) Remove(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failRemove != nil {
		return p.failRemove
	}
	p.end(name)
	return os.RemoveAll(string(p.layout.Daemon(name)))
}

// life is a supervisor from its start to its end.
type life struct {
	*supervisor.Supervisor
	layout mps.Layout
	kill   func()
}

func (p *programs) supervise(t testing.TB, boot string) *life {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := supervisor.New(ctx, supervisor.Config{Layout: p.layout, Programs: p, Boot: boot})
	must(t, s.Adopt(ctx))
	return &life{s, p.layout, func() { cancel(); s.Wait() }}
}

func spec(threads int) mps.Spec {
	return mps.Spec{Devices: []mps.Device{{UUID: "GPU-1", PinnedMemoryMiB: 2048}}, ActiveThreadPercentage: &threads}
}

// serve listens until the context ends.
func (l *life) serve(ctx context.Context, t *testing.T) error {
	listener, err := supervisor.Listen(ctx, l.layout)
	if err != nil {
		t.Error(err)
		return err
	}
	return l.Serve(ctx, listener)
}

// unlimited gives a daemon no limits.
func unlimited() error { return nil }

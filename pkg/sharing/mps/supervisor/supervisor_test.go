package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

func limitsOf(threads int) map[string]string {
	return map[string]string{"threads": fmt.Sprintf("%d.0", threads), "0": "2048M"}
}

// Claims come and go, daemons die, supervisors are killed, machines are started again: what is
// wanted runs with its limits, and nothing else runs.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without the deadline of a test, which has no meaning in the bubble.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			p := newPrograms(t)
			boot := 0
			current := p.supervise(t, "0")
			defer func() { current.kill() }()
			wanted := map[string]int{}
			names := rapid.SampledFrom([]string{"a", "b", "c"})
			rt.Repeat(map[string]func(*rapid.T){
				"": func(rt *rapid.T) {
					// Longer than the longest pause between two tries.
					time.Sleep(time.Minute)
					synctest.Wait()
					for _, name := range []string{"a", "b", "c"} {
						threads, should := wanted[name]
						got := p.limits(name)
						if should != (got != nil) || should && cmp.Diff(limitsOf(threads), got) != "" {
							rt.Fatalf("daemon %s is wanted: %t with %d, and has %v", name, should, threads, got)
						}
					}
				},
				"ensure": func(rt *rapid.T) {
					name, threads := names.Draw(rt, "name"), rapid.IntRange(1, 3).Draw(rt, "threads")
					before := p.starts
					status, err := current.Ensure(t.Context(), name, spec(threads))
					if err != nil || !status.Ready {
						rt.Fatalf("%+v, %v", status, err)
					}
					if had, ok := wanted[name]; ok && had == threads && p.starts != before {
						rt.Fatal("a daemon that served was started again")
					}
					wanted[name] = threads
				},
				"stop": func(rt *rapid.T) {
					name := names.Draw(rt, "name")
					if err := current.Stop(t.Context(), name); err != nil {
						rt.Fatal(err)
					}
					delete(wanted, name)
				},
				"a daemon dies": func(rt *rapid.T) { p.kill(names.Draw(rt, "name")) },
				"and fails to start": func(rt *rapid.T) {
					p.set(func() { p.failStarts = 0 })
					name := names.Draw(rt, "name")
					if _, ok := wanted[name]; !ok {
						return
					}
					p.set(func() { p.failStarts = 2 })
					p.kill(name)
				},
				"the supervisor is killed": func(rt *rapid.T) {
					// All that is wanted runs: the next one takes it over as it is.
					before := p.starts
					current.kill()
					current = p.supervise(t, fmt.Sprint(boot))
					time.Sleep(time.Minute)
					synctest.Wait()
					if p.starts != before {
						rt.Fatal("a daemon was started again under another supervisor")
					}
				},
				"both die": func(rt *rapid.T) {
					current.kill()
					p.kill(names.Draw(rt, "name"))
					current = p.supervise(t, fmt.Sprint(boot))
				},
				"reboot": func(*rapid.T) {
					current.kill()
					for _, name := range []string{"a", "b", "c"} {
						p.kill(name)
					}
					clear(wanted)
					boot++
					current = p.supervise(t, fmt.Sprint(boot))
				},
			})
		})
	})
}

// What fails at the first try leaves nothing; what has clients is tried again.
func TestEnsureThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, harm := range map[string]func(*programs){
			"start": func(p *programs) { p.failStarts = 1 },
			"mute":  func(p *programs) { p.mute = true },
			"deaf":  func(p *programs) { p.deaf = true },
		} {
			p := newPrograms(t)
			s := p.supervise(t, "0")
			p.set(func() { harm(p) })
			if _, err := s.Ensure(t.Context(), "a", spec(20)); err == nil {
				t.Errorf("%s: no error", name)
			}
			if _, err := os.Stat(string(p.layout.Daemon("a"))); !errors.Is(err, os.ErrNotExist) || p.limits("a") != nil || len(s.List()) != 0 {
				t.Errorf("%s: left %v, %v, %+v", name, err, p.limits("a"), s.List())
			}
			p.set(func() { p.failStarts, p.mute, p.deaf = 0, false, false })
			_, err := s.Ensure(t.Context(), "a", spec(20))
			must(t, err)

			// Again, with clients there.
			p.set(func() { harm(p) })
			p.kill("a")
			synctest.Wait()
			if status := s.List()[0]; name != "start" && (status.Ready || !status.Served || status.Message == "") {
				t.Errorf("%s: %+v", name, status)
			}
			if got := p.limits("a"); name != "start" && got != nil {
				t.Errorf("%s: a daemon runs on with the limits %v", name, got)
			}
			p.set(func() { p.failStarts, p.mute, p.deaf = 0, false, false })
			time.Sleep(time.Minute)
			synctest.Wait()
			if diff := cmp.Diff(limitsOf(20), p.limits("a")); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			s.kill()
		}
	})
}

// A daemon that was started and has no limits yet is none that a supervisor takes over.
func TestOneWithoutLimitsIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPrograms(t)
		s := p.supervise(t, "0")
		_, err := s.Ensure(t.Context(), "a", spec(20))
		must(t, err)
		s.kill()
		// Started by somebody who was killed before giving it limits.
		_, err = p.Start(t.Context(), "a", spec(20), unlimited)
		must(t, err)
		s = p.supervise(t, "0")
		defer s.kill()
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(limitsOf(20), p.limits("a")); diff != "" {
			t.Error(diff)
		}
	})
}

// What a stop left half done is finished by the next supervisor, and what nobody can read is not
// wanted.
func TestLeftovers(t *testing.T) {
	for name, content := range map[string]string{"no spec": "", "damaged": "{", "no devices": `{"boot":"0","spec":{}}`} {
		t.Run(name, func(t *testing.T) {
			p := newPrograms(t)
			must(t, os.MkdirAll(string(p.layout.Daemon("a")), 0o755))
			if content != "" {
				must(t, os.WriteFile(p.layout.Daemon("a").Spec(), []byte(content), 0o600))
			}
			must(t, os.MkdirAll(p.layout.Daemons()+"/Not a name", 0o755))
			_, err := p.Start(t.Context(), "a", spec(20), unlimited)
			must(t, err)
			s := p.supervise(t, "0")
			defer s.kill()
			if p.limits("a") != nil || len(s.List()) != 0 {
				t.Errorf("left %v, %+v", p.limits("a"), s.List())
			}
			if _, err := os.Stat(p.layout.Daemons() + "/Not a name"); err != nil {
				t.Errorf("what is not ours: %v", err)
			}
		})
	}
}

// A stop that fails is told, and can be repeated; the daemon does not come back.
func TestStopThatFails(t *testing.T) {
	p := newPrograms(t)
	s := p.supervise(t, "0")
	defer s.kill()
	_, err := s.Ensure(t.Context(), "a", spec(20))
	must(t, err)
	broken := errors.New("will not go")
	p.set(func() { p.failRemove = broken })
	if err := s.Stop(t.Context(), "a"); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if status := s.List()[0]; status.Ready || !strings.Contains(status.Message, "will not go") {
		t.Errorf("%+v", status)
	}
	p.set(func() { p.failRemove = nil })
	must(t, s.Stop(t.Context(), "a"))
	if p.limits("a") != nil || len(s.List()) != 0 {
		t.Errorf("left %v", p.limits("a"))
	}
}

// Two who ask at once get one daemon, and who waits for another's work waits no longer than its
// context.
func TestAtOnce(t *testing.T) {
	p := newPrograms(t)
	s := p.supervise(t, "0")
	defer s.kill()
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := s.Ensure(t.Context(), "a", spec(20))
			done <- err
		}()
	}
	for range 8 {
		must(t, <-done)
	}
	if p.starts != 1 {
		t.Errorf("%d starts", p.starts)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Ensure(ended, "b", spec(20)); err == nil && p.limits("b") == nil {
		t.Error("neither done nor refused")
	}
}

// Requests come over a socket; what is wrong with one is said.
func TestServe(t *testing.T) {
	p := newPrograms(t)
	s := p.supervise(t, "0")
	defer s.kill()
	ctx, cancel := context.WithCancel(t.Context())
	// What an earlier supervisor left.
	must(t, os.WriteFile(p.layout.Socket(), nil, 0o600))
	served := make(chan error)
	go func() { served <- s.serve(ctx, t) }()
	c := mps.Client{Layout: p.layout, Patience: time.Hour}
	must(t, c.Ensure(t.Context(), "a", spec(20)))
	list, err := c.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Ready || list[0].Name != "a" {
		t.Errorf("%+v, %v", list, err)
	}
	var refused *mps.RefusedError
	if err := c.Stop(t.Context(), "../a"); !errors.As(err, &refused) || !refused.Invalid {
		t.Errorf("error %v", err)
	}
	p.set(func() { p.failStarts = 1 })
	if err := c.Ensure(t.Context(), "b", spec(20)); !errors.As(err, &refused) || refused.Invalid || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("error %v", err)
	}
	must(t, c.Stop(t.Context(), "a"))
	cancel()
	must(t, <-served)
	if info, err := os.Stat(p.layout.Socket()); err == nil && info.Mode().Perm() != 0o600 {
		t.Errorf("socket for %s", info.Mode())
	}
}

// gated are programs whose removal waits.
type gated struct {
	*programs
	begun, open chan struct{}
}

func (g gated) Remove(ctx context.Context, name string) error {
	g.begun <- struct{}{}
	<-g.open
	return g.programs.Remove(ctx, name)
}

// A caller that has hung up while others had the daemon's turn gets none: what it asked for before
// is over, and nobody would end a daemon that is started now.
func TestCallerThatHasHungUp(t *testing.T) {
	p := newPrograms(t)
	g := gated{p, make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &life{supervisor.New(ctx, supervisor.Config{Layout: p.layout, Programs: g, Boot: "0"}), p.layout, nil}
	served := make(chan error)
	go func() { served <- s.serve(ctx, t) }()
	c := mps.Client{Layout: p.layout, Patience: time.Hour}
	must(t, c.Ensure(t.Context(), "a", spec(20)))
	stopped := make(chan error)
	go func() { stopped <- c.Stop(t.Context(), "a") }()
	<-g.begun
	for range 2 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", p.layout.Socket())
		must(t, err)
		wanted := spec(20)
		must(t, mps.Write(conn, mps.Request{Version: mps.ProtocolVersion, Op: mps.OpEnsure, Name: "a", Spec: &wanted, TimeoutMillis: time.Hour.Milliseconds()}))
		must(t, conn.Close())
	}
	// Connections are taken in their order: those two are being served now.
	_, err := c.List(t.Context())
	must(t, err)
	close(g.open)
	must(t, <-stopped)
	cancel()
	must(t, <-served)
	if p.starts != 1 || len(s.List()) != 0 {
		t.Errorf("%d starts, then there is %+v", p.starts, s.List())
	}
	s.Wait()
}

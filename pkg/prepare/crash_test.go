package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// mortal runs an engine that dies at the given point; 0 is never.
func mortal(t testing.TB, n *node, at int) (*Engine, *crasher) {
	t.Helper()
	c := &crasher{}
	store, specs := n.store(t), n.specs(t)
	e := n.start(t, func(config *Config) {
		config.Journal = mortalJournal{store, c}
		config.Specs = mortalSpecs{specs, c}
		for kind, executor := range config.Executors {
			config.Executors[kind] = mortalExecutor{executor, c}
		}
	})
	c.budget = at
	return e, c
}

// matrixPlan has a whole device, and one GPU's steps, so that the order of effects is fixed.
func matrixPlan() claims.Plan { return plan("c1", part(1, "a"), part(1, "b"), gpu(2)) }

// inUse fails where the claim's hardware is not as it must be while it is prepared.
func inUse(t *testing.T, n *node) {
	t.Helper()
	if len(n.hw.made) != 4 {
		t.Errorf("hardware: %v", n.hw.made)
	}
	spec := n.spec(t, "c1")
	for where, output := range n.hw.made {
		kind, device, _ := strings.Cut(where, " ")
		if want := fmt.Sprintf("%s_%s=%d", kind, device[len(device)-1:], output); !strings.Contains(spec, want) {
			t.Errorf("%s is not in the CDI spec %s", want, spec)
		}
	}
}

// ways are what can happen to a claim after the process died in a call for it.
func ways() map[string]func(t *testing.T, n *node) {
	again := func(t *testing.T, n *node) {
		e := n.start(t)
		prepareOK(t, e, matrixPlan())
		inUse(t, n)
		unprepareOK(t, e, "c1")
	}
	return map[string]func(t *testing.T, n *node){
		"prepare again": again,
		"unprepare":     func(t *testing.T, n *node) { unprepareOK(t, n.start(t), "c1") },
		"reboot, prepare again": func(t *testing.T, n *node) {
			n.reboot(t)
			again(t, n)
		},
		"reboot, unprepare": func(t *testing.T, n *node) {
			n.reboot(t)
			unprepareOK(t, n.start(t), "c1")
		},
		"another allocation": func(t *testing.T, n *node) {
			e := n.start(t)
			prepareOK(t, e, plan("c1", gpu(3)))
			if len(n.hw.made) != 0 {
				t.Errorf("hardware of the first allocation: %v", n.hw.made)
			}
			prepareOK(t, e, plan("c2", gpu(1), gpu(2)))
			unprepareOK(t, e, "c2")
			unprepareOK(t, e, "c1")
		},
		"die again and again, then unprepare": func(t *testing.T, n *node) {
			for at := 1; ; at++ {
				e, c := mortal(t, n, at)
				err := e.Unprepare(t.Context(), claims.Ref{UID: "c1"})
				if !c.dead {
					must(t, err)
					return
				}
			}
		},
	}
}

// Every point of a prepare and of an unprepare, each with every way on. A last round runs with
// a call that is not cut short, so no point is left out.
func TestCrashMatrix(t *testing.T) {
	calls := map[string]func(e *Engine, t *testing.T) error{
		"prepare": func(e *Engine, t *testing.T) error {
			_, err := e.Prepare(t.Context(), matrixPlan())
			return err
		},
		"unprepare": func(e *Engine, t *testing.T) error { return e.Unprepare(t.Context(), claims.Ref{UID: "c1"}) },
	}
	for name, call := range calls {
		for way, goOn := range ways() {
			t.Run(name+"/"+way, func(t *testing.T) {
				rows := 0
				for dead := true; dead; rows++ {
					n := newNode(t)
					if name == "unprepare" {
						prepareOK(t, n.start(t), matrixPlan())
					}
					e, c := mortal(t, n, rows+1)
					err := call(e, t)
					if dead = c.dead; dead != errors.Is(err, errCrashed) {
						t.Errorf("point %d: %v", rows+1, err)
					}
					goOn(t, n)
					if left := n.leftovers(t); left != nil {
						t.Fatalf("died at point %d; left behind: %v", rows+1, left)
					}
				}
				if rows < 10 {
					t.Errorf("only %d points", rows)
				}
			})
		}
	}
}

// Every effect failing instead: the call says so, and nothing is left or all can be tried again.
func TestFailureMatrix(t *testing.T) {
	var calls []string
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, matrixPlan())
	unprepareOK(t, e, "c1")
	calls = append(calls, n.hw.calls...)
	if len(calls) != 8 {
		t.Fatalf("calls %v", calls)
	}
	broken := errors.New("broken")
	for _, failing := range calls {
		t.Run(failing, func(t *testing.T) {
			n := newNode(t)
			e := n.start(t)
			n.hw.fault = func(call string) error {
				if call == failing {
					return broken
				}
				return nil
			}
			_, err := e.Prepare(t.Context(), matrixPlan())
			if strings.HasPrefix(failing, "do ") {
				if !errors.Is(err, broken) {
					t.Errorf("prepare: %v", err)
				}
				n.clean(t)
			} else {
				must(t, err)
				inUse(t, n)
				if err := e.Unprepare(t.Context(), claimOf("c1")); !errors.Is(err, broken) {
					t.Errorf("unprepare: %v", err)
				}
				// A prepare may come before the next unprepare: all is there again.
				n.hw.fault = nil
				prepareOK(t, e, matrixPlan())
				inUse(t, n)
			}
			n.hw.fault = nil
			unprepareOK(t, e, "c1")
			n.clean(t)
		})
	}
}

// A step fails, and taking back an earlier one fails as well: the record stays and says so.
func TestFailingRollback(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	n.hw.fault = func(call string) error {
		if call == "do wire gpu-1-b" || call == "undo carve gpu-1-a" {
			return errors.New("stuck: " + call)
		}
		return nil
	}
	_, err := e.Prepare(t.Context(), matrixPlan())
	for _, want := range []string{"stuck: do wire gpu-1-b", "stuck: undo carve gpu-1-a"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if len(n.hw.made) != 1 {
		t.Errorf("hardware: %v", n.hw.made)
	}
	held := new(HeldError)
	if _, err := e.Prepare(t.Context(), plan("c2", part(1, "a"))); !errors.As(err, &held) || held.Holder.UID != "c1" {
		t.Errorf("what could not be taken back was given away: %v", err)
	}
	n.hw.fault = nil
	// After a restart as well.
	e = n.start(t)
	prepareOK(t, e, matrixPlan())
	inUse(t, n)
	unprepareOK(t, e, "c1")
	n.clean(t)
}

// fullSpecs is a CDI directory on a disk that is full, and from then on so is the journal's.
type fullSpecs struct {
	*cdi.Dir
	full *bool
}

func (f fullSpecs) EnsureClaim(ctx context.Context, uid types.UID, d []cdi.Device) (bool, error) {
	if *f.full {
		return false, syscall.ENOSPC
	}
	return f.Dir.EnsureClaim(ctx, uid, d)
}

type fullJournal struct {
	*journal.Store
	full *bool
}

func (f fullJournal) Save(r *journal.Record) error {
	if *f.full && r.State == journal.StateStarted {
		return syscall.ENOSPC
	}
	return f.Store.Save(r)
}

// The disk is full when all is done and the record says so: nothing is undone under that record, and
// with room on the disk the claim is as it should be.
func TestFullAfterTheSteps(t *testing.T) {
	n := newNode(t)
	full := false
	e := n.start(t, func(c *Config) {
		c.Specs, c.Journal = fullSpecs{n.specs(t), &full}, fullJournal{n.store(t), &full}
		for kind, executor := range c.Executors {
			c.Executors[kind] = filling{executor, &full}
		}
	})
	if _, err := e.Prepare(t.Context(), matrixPlan()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("prepare: %v", err)
	}
	full = false
	held := new(HeldError)
	if _, err := n.start(t).Prepare(t.Context(), plan("c2", part(1, "a"))); !errors.As(err, &held) {
		t.Errorf("what is still done was given away: %v", err)
	}
	prepareOK(t, n.start(t), matrixPlan())
	inUse(t, n)
	unprepareOK(t, e, "c1")
	n.clean(t)
}

// filling fills the disk with what it does.
type filling struct {
	Executor
	full *bool
}

func (f filling) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	var p stepParams
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, err
	}
	out, err := f.Executor.Do(ctx, params)
	*f.full = *f.full || f.Executor.(carver).kind == "wire" && p.Where == part(1, "b").Name()
	return out, err
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(`{"uid":"c1","namespace":"a","devices":[{"pci":"0000:1a:00.0"}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseEntry(data, "c1")
		if err == nil && r.UID != "c1" {
			t.Errorf("%q is taken as the entry of c1", data)
		}
	})
}

package prepare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

var errCrashed = errors.New("the process is dead")

// crasher ends a process at a chosen point: just before or just after one of its effects. A
// dead process has no effects any more.
type crasher struct {
	mu     sync.Mutex
	budget int // points until the end; 0 is never
	dead   bool
}

func (c *crasher) point() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.budget > 0 {
		if c.budget--; c.budget == 0 {
			c.dead = true
		}
	}
	return c.dead
}

func (c *crasher) around(effect func() error) error {
	if c.point() {
		return errCrashed
	}
	err := effect()
	if c.point() {
		return errCrashed
	}
	return err
}

type mortalJournal struct {
	*journal.Store
	c *crasher
}

func (m mortalJournal) Save(r *journal.Record) error {
	return m.c.around(func() error { return m.Store.Save(r) })
}

func (m mortalJournal) Delete(uid types.UID) error {
	return m.c.around(func() error { return m.Store.Delete(uid) })
}

type mortalSpecs struct {
	*cdi.Dir
	c *crasher
}

func (m mortalSpecs) EnsureClaim(ctx context.Context, uid types.UID, d []cdi.Device) (written bool, err error) {
	err = m.c.around(func() (err error) {
		written, err = m.Dir.EnsureClaim(ctx, uid, d)
		return err
	})
	return written, err
}

func (m mortalSpecs) RemoveClaim(uid types.UID) error {
	return m.c.around(func() error { return m.Dir.RemoveClaim(uid) })
}

type mortalExecutor struct {
	Executor
	c *crasher
}

func (m mortalExecutor) Do(ctx context.Context, params jsontext.Value) (out jsontext.Value, err error) {
	err = m.c.around(func() (err error) {
		out, err = m.Executor.Do(ctx, params)
		return err
	})
	return out, err
}

func (m mortalExecutor) Undo(ctx context.Context, params, output jsontext.Value) error {
	return m.c.around(func() error { return m.Executor.Undo(ctx, params, output) })
}

// known is what the kubelet knows of a claim.
type known struct {
	boards []board
	// owner: a prepare was answered and no unprepare was asked for since.
	owner bool
	// fresh: and there was no reboot since.
	fresh bool
	// unsure: a call died, so that anything may be left.
	unsure bool
}

// world is the machine together with the model of it.
type world struct {
	t      *testing.T
	node   *node
	crash  *crasher
	engine *Engine
	claims map[types.UID]*known
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, node: newNode(t), claims: map[types.UID]*known{}}
	w.restart()
	return w
}

func (w *world) restart() { w.engine, w.crash = mortal(w.t, w.node, 0) }

func (w *world) claim(rt *rapid.T) (types.UID, *known) {
	uid := types.UID(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(rt, "claim")))
	if w.claims[uid] == nil {
		pool := []board{gpu(0), gpu(1), part(0, "a"), part(0, "b"), part(1, "a")}
		first := rapid.SampledFrom(pool).Draw(rt, "device")
		boards := []board{first}
		second := rapid.SampledFrom(pool).Draw(rt, "second device")
		if !first.Overlaps(second.Identity()) {
			boards = append(boards, second)
		}
		w.claims[uid] = &known{boards: boards}
	}
	return uid, w.claims[uid]
}

func overlap(a, b []board) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Overlaps(y.Identity()) {
				return true
			}
		}
	}
	return false
}

// prepare calls the engine, maybe with a crash, and holds its answer against the model.
func (w *world) prepare(rt *rapid.T) {
	uid, c := w.claim(rt)
	w.crash.budget = rapid.IntRange(0, 16).Draw(rt, "crash in prepare")
	prepared, err := w.engine.Prepare(context.Background(), plan(uid, c.boards...))
	w.crash.budget = 0
	held := new(HeldError)
	switch {
	case w.crash.dead:
		c.unsure = true
		w.restart()
	case err == nil:
		if len(prepared) != len(c.boards) {
			rt.Fatalf("%d devices for %v", len(prepared), c.boards)
		}
		for other, o := range w.claims {
			if other != uid && o.owner && overlap(c.boards, o.boards) {
				rt.Fatalf("%s got %v although %s has %v", uid, c.boards, other, o.boards)
			}
		}
		c.owner, c.fresh, c.unsure = true, true, false
	case errors.As(err, &held):
		o := w.claims[held.Holder.UID]
		if o == nil || !o.owner && !o.unsure || !overlap(c.boards, o.boards) || c.owner {
			rt.Fatalf("prepare of %s (%+v): %v, holder %+v", uid, c, err, o)
		}
	default:
		rt.Fatalf("prepare of %s: %v", uid, err)
	}
}

func (w *world) unprepare(rt *rapid.T) {
	uid, c := w.claim(rt)
	w.crash.budget = rapid.IntRange(0, 12).Draw(rt, "crash in unprepare")
	err := w.engine.Unprepare(context.Background(), claims.Ref{UID: uid})
	w.crash.budget = 0
	switch {
	case w.crash.dead:
		*c = known{boards: c.boards, unsure: true}
		w.restart()
	case err != nil:
		rt.Fatalf("unprepare of %s: %v", uid, err)
	default:
		delete(w.claims, uid)
	}
}

func (w *world) reboot(*rapid.T) {
	w.node.reboot(w.t)
	for _, c := range w.claims {
		c.fresh = false
	}
	w.restart()
}

// check holds the machine against the model.
func (w *world) check(rt *rapid.T) {
	mayBe := map[string]bool{}
	for uid, c := range w.claims {
		for _, b := range c.boards {
			if b.partition == "" {
				continue
			}
			for _, kind := range []string{"carve ", "wire "} {
				where := kind + b.Name()
				mayBe[where] = mayBe[where] || c.owner || c.unsure
				if _, made := w.node.hw.made[where]; c.fresh && !made {
					rt.Fatalf("%s is prepared, but %q is not done", uid, where)
				}
			}
		}
		if c.fresh && !c.unsure && w.node.spec(w.t, uid) == "" {
			rt.Fatalf("%s is prepared, but has no CDI spec", uid)
		}
	}
	for where := range w.node.hw.made {
		if !mayBe[where] {
			rt.Fatalf("%q is done for nobody", where)
		}
	}
}

// Random sequences of calls, crashes at any effect, restarts and reboots: never two owners of
// one device, and nothing is left when all claims are unprepared.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		rt.Repeat(map[string]func(*rapid.T){
			"prepare":   w.prepare,
			"again":     w.prepare,
			"unprepare": w.unprepare,
			"reboot":    w.reboot,
			"restart":   func(*rapid.T) { w.restart() },
			"":          w.check,
		})
		for uid := range w.claims {
			unprepareOK(t, w.engine, uid)
		}
		w.engine = w.node.start(t)
		if left := w.node.leftovers(t); left != nil {
			rt.Fatalf("left behind: %v", left)
		}
	})
}

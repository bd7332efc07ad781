package watch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/watch"
)

// node answers and notes what is told.
type node struct {
	list  []mps.Status
	err   error
	looks int

	down        map[string]string
	restarted   []string
	ready, lost int
	counted     int
	up          bool
}

func (n *node) List(context.Context) ([]mps.Status, error) { n.looks++; return n.list, n.err }

func (n *node) MPSDown(_ context.Context, down map[string]string) { n.down = down }

func (n *node) MPSDaemons(ready, down int) { n.ready, n.lost = ready, down }

func (n *node) MPSSupervisor(up bool) { n.up = up }

// meter counts apart from the reporter, whose method has the same name.
type meter struct{ *node }

func (m meter) MPSRestarted() { m.counted++ }

type reporter struct{ *node }

func (r reporter) MPSRestarted(_ context.Context, daemon string) {
	r.restarted = append(r.restarted, daemon)
}

func newWatch() (*node, *watch.Watch) {
	n := &node{}
	return n, &watch.Watch{Daemons: n, Reporter: reporter{n}, Meter: meter{n}}
}

func serving(name string, restarts int) mps.Status {
	return mps.Status{Name: name, Ready: true, Served: true, Restarts: restarts}
}

func TestLooks(t *testing.T) {
	n, w := newWatch()
	look := func(what string, ready, down, restarts int, list ...mps.Status) {
		t.Helper()
		n.list = list
		w.Look(t.Context())
		got := fmt.Sprint(n.ready, n.lost, len(n.down), n.counted, len(n.restarted), n.up)
		if want := fmt.Sprint(ready, down, down, restarts, restarts, true); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	look("from before", 1, 0, 0, serving("b", 2))
	look("starting", 1, 0, 0, mps.Status{Name: "a"}, serving("b", 2))
	look("serving", 2, 0, 0, serving("a", 0), serving("b", 2))
	look("died", 1, 1, 0, mps.Status{Name: "a", Served: true, Message: "no"}, serving("b", 2))
	look("back", 2, 0, 1, serving("a", 1), serving("b", 2))
	look("died and back between looks", 2, 0, 2, serving("a", 1), serving("b", 3))
	look("ended", 1, 0, 2, serving("b", 3))
	look("wanted anew", 2, 0, 2, serving("a", 0), serving("b", 3))
	look("ended and wanted anew between looks", 2, 0, 2, serving("a", 0), serving("b", 0))
	if diff := cmp.Diff([]string{"a", "b"}, n.restarted); diff != "" {
		t.Error(diff)
	}
}

// A supervisor that is away is told; what was known of daemons stays.
func TestASupervisorThatIsAway(t *testing.T) {
	n, w := newWatch()
	n.list = []mps.Status{serving("a", 0)}
	w.Look(t.Context())
	n.err = errors.New("nobody there")
	w.Look(t.Context())
	if n.up || n.ready != 1 || n.down["supervisor"] != "nobody there" {
		t.Errorf("%+v", n)
	}
	n.err, n.list = nil, []mps.Status{serving("a", 1)}
	w.Look(t.Context())
	if !n.up || len(n.down) != 0 || n.counted != 1 {
		t.Errorf("%+v", n)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := newWatch()
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx, time.Minute)
		time.Sleep(2*time.Minute + time.Second)
		synctest.Wait()
		if n.looks != 3 {
			t.Errorf("%d looks in two minutes", n.looks)
		}
		cancel()
		synctest.Wait()
		time.Sleep(time.Hour)
		if n.looks != 3 {
			t.Errorf("it looks on")
		}
	})
}

// A look that the end of the plugin cuts off tells nothing.
func TestTheEnd(t *testing.T) {
	n, w := newWatch()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.err = context.Canceled
	w.Look(ctx)
	if n.down != nil {
		t.Errorf("told %v", n.down)
	}
}

package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/mig/applier"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
	"github.com/gpu-dra/driver/pkg/mig/keeper"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/report"
)

// world is all that a keeper works with.
type world struct {
	changed, known, seen bool
	config               string
	err                  error
	statuses             []applier.Status
	applied, redeclared  int
	told                 declaration.State
	tellErr              error
	count                map[metrics.LayoutState]int
	conditions           map[report.Reason]map[string]string
	// passes gets a line for each pass, where it is not nil.
	passes chan string
}

func (w *world) Read() bool                                         { return w.changed }
func (w *world) Known() bool                                        { return w.known }
func (w *world) Config() string                                     { return w.config }
func (w *world) Layouts(inventory.Snapshot) (layout.Layouts, error) { return nil, w.err }

func (w *world) Apply(context.Context, inventory.Snapshot, layout.Layouts) []applier.Status {
	w.applied++
	if w.passes != nil {
		w.passes <- fmt.Sprintf("applied %d, redeclared %d", w.applied, w.redeclared)
	}
	return w.statuses
}

func (w *world) Lasting(_ context.Context, reason report.Reason, current map[string]string) {
	w.conditions[reason] = current
}

func (w *world) keeper() *keeper.Keeper {
	w.conditions, w.told = map[report.Reason]map[string]string{}, "untold"
	return keeper.New(keeper.Config{
		Source: w, Applier: w, Reporter: w, Interval: time.Minute,
		Layouts: func(count map[metrics.LayoutState]int) { w.count = count },
		View: func() (inventory.Snapshot, bool) {
			return inventory.Snapshot{Driver: inventory.Driver{Present: true}}, w.seen
		},
		Tell:       func(_ context.Context, state declaration.State) error { w.told = state; return w.tellErr },
		Redeclared: func(context.Context) { w.redeclared++ },
	})
}

func TestPass(t *testing.T) {
	at := func(bus uint8, state applier.State, reason string) applier.Status {
		return applier.Status{GPU: pci.Address{Bus: bus}, State: state, Reason: reason}
	}
	applied, pending, failed := at(1, applier.Applied, ""), at(2, applier.Pending, "in use"), at(3, applier.Failed, "no room")
	for name, c := range map[string]struct {
		world
		want       declaration.State
		conditions map[report.Reason]string
	}{
		"nothing seen":     {world{known: true, config: "x"}, "untold", nil},
		"label not known":  {world{seen: true, config: "x"}, "untold", nil},
		"applied":          {world{known: true, seen: true, config: "x", statuses: []applier.Status{applied}}, declaration.Success, nil},
		"no GPU":           {world{known: true, seen: true, config: "x"}, declaration.Success, nil},
		"nothing declared": {world{known: true, seen: true}, "", nil},
		"being undone":     {world{known: true, seen: true, statuses: []applier.Status{pending}}, declaration.Pending, map[report.Reason]string{report.MIGLayoutPending: `MIG layout "" waits: in use`}},
		"pending": {
			world{known: true, seen: true, config: "x", statuses: []applier.Status{applied, pending}},
			declaration.Pending,
			map[report.Reason]string{report.MIGLayoutPending: `MIG layout "x" waits: in use`},
		},
		"failed": {
			world{known: true, seen: true, config: "x", statuses: []applier.Status{applied, pending, failed}},
			declaration.Failed,
			map[report.Reason]string{report.MIGLayoutPending: `MIG layout "x" waits: in use`, report.MIGLayoutFailed: "no room"},
		},
		"refused": {
			world{known: true, seen: true, config: "x", err: errors.New("another tool")},
			declaration.Failed,
			map[report.Reason]string{report.MIGLayoutRefused: "another tool"},
		},
		"the API server is away": {world{known: true, seen: true, config: "x", tellErr: errors.New("away")}, declaration.Success, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.world
			w.keeper().Pass(t.Context())
			if w.told != c.want {
				t.Errorf("told %q, want %q", w.told, c.want)
			}
			got := map[report.Reason]string{}
			for reason, current := range w.conditions {
				for _, note := range current {
					got[reason] = note
				}
			}
			if c.conditions == nil {
				c.conditions = map[report.Reason]string{}
			}
			if diff := cmp.Diff(c.conditions, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			count := 0
			for _, n := range w.count {
				count += n
			}
			if count != len(w.statuses) {
				t.Errorf("%d GPUs counted", count)
			}
			if (w.applied > 0) != (c.want != "untold" && w.err == nil) {
				t.Errorf("applied %d times", w.applied)
			}
		})
	}
}

// It looks at the start, when it is woken, and from time to time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{known: true, seen: true, changed: true, passes: make(chan string)}
		k := w.keeper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		begin := time.Now()
		go func() { k.Run(ctx); close(ended) }()
		got := []string{<-w.passes}
		k.Wake()
		got = append(got, <-w.passes)
		if passed := time.Since(begin); passed != 0 {
			t.Errorf("woken after %s", passed)
		}
		got = append(got, <-w.passes)
		if passed := time.Since(begin); passed != time.Minute {
			t.Errorf("it looks again after %s", passed)
		}
		cancel()
		<-ended
		want := []string{"applied 1, redeclared 1", "applied 2, redeclared 2", "applied 3, redeclared 3"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("passes (-want +got):\n%s", diff)
		}
	})
}

package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/report"
)

const (
	driver = "gpu.nvidia.com"
	socket = "/registry/gpu.nvidia.com-reg.sock"
)

func offering(amounts ...string) conflict.Seen {
	n := &conflict.Node{Allocatable: map[string]string{}}
	for _, a := range amounts {
		name, amount, _ := strings.Cut(a, "=")
		n.Allocatable[name] = amount
	}
	return conflict.Seen{Node: n}
}

// node is what a Watch works on in tests.
type node struct {
	seen  conflict.Seen
	looks int
	// told is what was reported last, held why slices are held, changes how often it changed.
	told    map[string]string
	held    error
	changes int
	// gone tells whether anything new was handed out when the twin was told to be gone.
	gone []bool
}

func (n *node) Look(context.Context) conflict.Seen { n.looks++; return n.seen }

func (n *node) Lasting(_ context.Context, reason report.Reason, current map[string]string) {
	if reason != report.OtherOwner {
		current = map[string]string{"reason": string(reason)}
	}
	n.told = current
}

func (n *node) watch(own conflict.Own, policies string) *guard.Watch {
	var p conflict.Policies
	if err := p.Set(policies); err != nil {
		panic(err)
	}
	var w *guard.Watch
	w = guard.New(guard.Config{
		Own: own, Policies: p, Looker: n, Reporter: n, Interval: 15 * time.Second,
		Changed: func(context.Context) { n.changes++ }, Hold: func(why error) { n.held = why },
		Gone: func(ctx context.Context) { n.gone = append(n.gone, w.Refusal(ctx) == nil) },
	})
	return w
}

// A second owner comes, stays and goes.
func TestWatch(t *testing.T) {
	for name, row := range map[string]struct {
		seen     conflict.Seen
		driver   string
		policies string
		taint    string
		warns    bool
		holds    bool
	}{
		"device plugin":          {offering("nvidia.com/gpu=1"), driver, "", "device-plugin", false, false},
		"device plugin, warn":    {offering("nvidia.com/gpu=1"), driver, "device-plugin=warn", "", true, false},
		"device plugin, ignore":  {offering("nvidia.com/gpu=1"), driver, "device-plugin=ignore", "", false, false},
		"driver of the name":     {conflict.Seen{Registered: map[string]string{driver: socket}}, driver, "", "dra-plugin", false, true},
		"the same, warn":         {conflict.Seen{Registered: map[string]string{driver: socket}}, driver, "dra-plugin=warn", "", true, false},
		"driver of another name": {conflict.Seen{Registered: map[string]string{driver: socket}}, "gpu2.nvidia.com", "", "dra-plugin", false, false},
		"MIG manager":            {conflict.Seen{MIGManager: "label"}, driver, "", "mig-manager", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{}
			w := n.watch(conflict.Own{Driver: row.driver, Partitions: true}, row.policies)
			check := func(there bool) {
				t.Helper()
				refused := there && row.taint != ""
				if err := w.Refusal(t.Context()); errors.Is(err, guard.ErrRefused) != refused || refused == (err == nil) {
					t.Errorf("refusal: %v", err)
				}
				if err := w.Warning(t.Context()); (err != nil) != (there && row.warns) {
					t.Errorf("warning: %v", err)
				}
				if (len(n.told) > 0) != (there && (refused || row.warns)) {
					t.Errorf("told: %v", n.told)
				}
				if (n.held != nil) != (there && row.holds) {
					t.Errorf("slices held: %v", n.held)
				}
				var want []resourceapi.DeviceTaint
				if refused {
					want = []resourceapi.DeviceTaint{{Key: row.driver + "/conflict", Value: row.taint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
				}
				if diff := cmp.Diff(want, w.Taints(nil)); diff != "" {
					t.Errorf("taints (-want +got):\n%s", diff)
				}
			}
			check(false)
			for _, there := range []bool{true, true, false} {
				n.seen = conflict.Seen{}
				if there {
					n.seen = row.seen
				}
				w.Look(t.Context())
				check(there)
			}
			want := 0
			if row.taint != "" {
				want = 2
			}
			if n.changes != want {
				t.Errorf("%d changes, want %d", n.changes, want)
			}
		})
	}
}

// What a twin left is taken over before anything new is handed out.
func TestTwin(t *testing.T) {
	for policies, openBefore := range map[string]bool{"": false, "dra-plugin=warn": true} {
		n := &node{seen: conflict.Seen{Registered: map[string]string{driver: socket}}}
		w := n.watch(conflict.Own{Driver: driver}, policies)
		if w.Twin() {
			t.Error("a twin before the first look")
		}
		w.Look(t.Context())
		if !w.Twin() || len(n.gone) > 0 {
			t.Errorf("%q: twin is %t, gone %v", policies, w.Twin(), n.gone)
		}
		n.seen = conflict.Seen{}
		for range 2 {
			w.Look(t.Context())
		}
		if diff := cmp.Diff([]bool{openBefore}, n.gone); diff != "" || w.Twin() {
			t.Errorf("%q: twin is %t; open when it went (-want +got):\n%s", policies, w.Twin(), diff)
		}
	}
}

func TestRunLooksAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{seen: offering("nvidia.com/gpu=1")}
		w := n.watch(conflict.Own{Driver: driver}, "")
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		w.Run(ctx)
		if n.looks != 2 || n.changes != 1 {
			t.Errorf("%d looks and %d changes in 40 s", n.looks, n.changes)
		}
	})
}

// Where all is ignored nothing is looked at.
func TestIgnoredIsNotLookedFor(t *testing.T) {
	n := &node{seen: offering("nvidia.com/gpu=1")}
	w := n.watch(conflict.Own{Driver: driver, Partitions: true}, "device-plugin=ignore,dra-plugin=ignore,mig-manager=ignore")
	w.Look(t.Context())
	w.Run(t.Context())
	if n.looks != 0 || n.told != nil {
		t.Errorf("%d looks, told %v", n.looks, n.told)
	}
}

// plans plans everything.
type plans struct{}

func (plans) Plan(c *resourceapi.ResourceClaim) (claims.Plan, error) {
	return claims.Plan{Claim: claims.Ref{UID: c.UID}}, nil
}

// Claims that were prepared before are planned again, as the kubelet may ask for them.
func TestGuard(t *testing.T) {
	n := &node{}
	w := n.watch(conflict.Own{Driver: driver}, "")
	g := guard.Guard{Planner: plans{}, Watch: w, Known: func(uid types.UID) bool { return uid == "known" }}
	for _, there := range []bool{false, true, false} {
		n.seen = conflict.Seen{}
		if there {
			n.seen = offering("nvidia.com/gpu=1")
		}
		w.Look(t.Context())
		for _, uid := range []types.UID{"known", "new"} {
			plan, err := g.Plan(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}})
			if refused := there && uid == "new"; errors.Is(err, guard.ErrRefused) != refused || !refused && plan.Claim.UID != uid {
				t.Errorf("a device plugin is there: %t, the %s claim: %+v, %v", there, uid, plan, err)
			}
			if err != nil && !strings.Contains(err.Error(), "nvidia.com/gpu: 1") {
				t.Errorf("the refusal does not say why: %v", err)
			}
		}
	}
}

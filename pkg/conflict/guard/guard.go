// Package guard keeps watch over others that hand out a node's GPUs: while one is there that may
// not be, every device is published with a taint and new claims are refused; claims that are
// prepared go on and can end. It is for the plugin's wiring. It must not know how a node is looked
// at, nor what a sign of such another is.
package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/report"
)

// ErrRefused is why a claim is not prepared.
var ErrRefused = errors.New("no new claim is prepared on this node")

// Looker looks at the node. What it cannot find out it leaves as before.
type Looker interface {
	Look(ctx context.Context) conflict.Seen
}

// Reporter tells people; report.Reporter is one.
type Reporter interface {
	Lasting(ctx context.Context, reason report.Reason, current map[string]string)
}

// Config is what a Watch works with.
type Config struct {
	Own      conflict.Own
	Policies conflict.Policies
	Looker   Looker
	Reporter Reporter
	// Interval is the time between two looks.
	Interval time.Duration
	// Changed is called when something is refused that was not, or the other way round.
	Changed func(ctx context.Context)
	// Gone is called when a driver of the same name is there no more, before anything new is handed
	// out: it may have left claims.
	Gone func(ctx context.Context)
	// Hold keeps ResourceSlices from being written while there is a reason, and lets them be
	// written again with nil.
	Hold func(why error)
}

// Watch keeps the verdict on the node. It is safe for concurrent use.
type Watch struct {
	config Config

	mu              sync.Mutex
	refused, warned []conflict.Conflict
	twin            bool
}

// New makes a Watch that has not looked yet: nothing is refused.
func New(c Config) *Watch { return &Watch{config: c} }

// Run looks again and again until the context ends.
func (w *Watch) Run(ctx context.Context) {
	if w.idle() {
		return
	}
	ticker := time.NewTicker(w.config.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Look(ctx)
		}
	}
}

// idle tells whether nothing that could be found would matter.
func (w *Watch) idle() bool {
	return !slices.ContainsFunc(conflict.Kinds(), func(k conflict.Kind) bool { return w.config.Policies.Of(k) != conflict.Ignore })
}

// Look looks once and tells what changed.
func (w *Watch) Look(ctx context.Context) {
	if w.idle() {
		return
	}
	var refused, warned []conflict.Conflict
	twin := false
	current := map[string]string{}
	for _, c := range conflict.Judge(w.config.Looker.Look(ctx), w.config.Own) {
		twin = twin || c.SameSlices
		switch w.config.Policies.Of(c.Kind) {
		case conflict.Refuse:
			refused = append(refused, c)
			current[string(c.Kind)] = fmt.Sprintf("%v: %v", ErrRefused, c)
		case conflict.Warn:
			warned = append(warned, c)
			current[string(c.Kind)] = c.String()
		}
	}
	w.mu.Lock()
	gone := w.twin && !twin
	w.twin = twin
	w.mu.Unlock()
	if gone {
		w.config.Gone(ctx)
	}
	w.mu.Lock()
	changed := !slices.Equal(w.refused, refused)
	w.refused, w.warned = refused, warned
	w.mu.Unlock()
	w.config.Reporter.Lasting(ctx, report.OtherOwner, current)
	if !changed {
		return
	}
	w.config.Hold(w.sameSlices())
	w.config.Changed(ctx)
}

func (w *Watch) sameSlices() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.refused {
		if c.SameSlices {
			return fmt.Errorf("the ResourceSlices are left to another driver: %v", c)
		}
	}
	return nil
}

// Twin tells whether a driver of the same name is there, whatever follows from that: it uses the
// same directory. A nil Watch knows of none.
func (w *Watch) Twin() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.twin
}

// Refusal is why no new claim is prepared; nil where they are. It is an ErrRefused.
func (w *Watch) Refusal(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRefused, texts(w.refused))
}

// Warning is what an admin should know and nothing follows from.
func (w *Watch) Warning(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.warned) == 0 {
		return nil
	}
	return errors.New(texts(w.warned))
}

func texts(of []conflict.Conflict) string {
	var all []string
	for _, c := range of {
		all = append(all, c.String())
	}
	return strings.Join(all, "; ")
}

// Taints are those of every device while new claims are refused: nothing is to be scheduled here.
func (w *Watch) Taints(device.Device) []resourceapi.DeviceTaint {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refused) == 0 {
		return nil
	}
	return []resourceapi.DeviceTaint{{
		Key: w.config.Own.Driver + "/conflict", Value: string(w.refused[0].Kind), Effect: resourceapi.DeviceTaintEffectNoSchedule,
	}}
}

// Planner plans claims.
type Planner interface {
	Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error)
}

// Guard is a Planner that refuses new claims while something is in the way. Known tells of a
// claim that was prepared before, whole or in part: the kubelet may ask for it again.
type Guard struct {
	Planner
	Watch *Watch
	Known func(claim types.UID) bool
}

// Plan implements Planner.
func (g Guard) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	if err := g.Watch.Refusal(context.Background()); err != nil && !g.Known(claim.UID) {
		return claims.Plan{}, err
	}
	return g.Planner.Plan(claim)
}

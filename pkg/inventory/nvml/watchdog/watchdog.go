// Package watchdog runs calls that cannot be cancelled and gives them up after a time. It is for
// package nvml, whose doc comment says what that means for callers. It must not know NVML.
package watchdog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// Library is what calls that concern no single GPU are about.
const Library = "the library"

// Watchdog runs calls that cannot be cancelled and gives them up after a time. What they are
// about (a GPU, or the library) is a key: there is at most one running call a key.
type Watchdog struct {
	limit time.Duration
	mu    sync.Mutex
	// running has the calls that have not returned, by what they are about.
	running map[string]*attempt
}

// attempt is a call under way.
type attempt struct {
	call, about string
	started     time.Time
	// returned is closed when the call came back.
	returned chan struct{}
}

func (a *attempt) hung() error { return &HungError{Call: a.call, About: a.about} }

// New makes a Watchdog that waits for a call for at most limit.
func New(limit time.Duration) *Watchdog {
	return &Watchdog{limit: limit, running: map[string]*attempt{}}
}

// Watch runs f and returns its value. The error is a HungError when f, or an earlier call about
// the same thing or about the library, does not return in time; or that of ctx. In both cases f
// may still run: it must not touch what its caller uses.
func Watch[T any](ctx context.Context, w *Watchdog, about, call string, f func() T) (T, error) {
	var zero T
	a, err := w.begin(ctx, about, call)
	if err != nil {
		return zero, err
	}
	value := make(chan T, 1)
	go func() {
		v := f()
		w.end(a)
		value <- v
	}()
	timeout := time.NewTimer(w.limit)
	defer timeout.Stop()
	select {
	case v := <-value:
		return v, nil
	case <-timeout.C:
		return zero, a.hung()
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// begin enters a call, once the one before it about the same thing has returned: that one may
// still run after its caller's context ended.
func (w *Watchdog) begin(ctx context.Context, about, call string) (*attempt, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		a, before, err := w.enter(about, call)
		if a != nil || err != nil {
			return a, err
		}
		if err := w.await(ctx, before); err != nil {
			return nil, err
		}
	}
}

// enter starts an attempt, returns the one in the way, or the error if that one hangs: that is
// a matter of its age alone, so that callers with little time see it too.
func (w *Watchdog) enter(about, call string) (a, before *attempt, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range []string{Library, about} {
		before, ok := w.running[at]
		switch {
		case ok && time.Since(before.started) >= w.limit:
			return nil, nil, before.hung()
		case ok:
			return nil, before, nil
		}
	}
	a = &attempt{call: call, about: about, started: time.Now(), returned: make(chan struct{})}
	w.running[about] = a
	return a, nil, nil
}

func (w *Watchdog) await(ctx context.Context, before *attempt) error {
	timeout := time.NewTimer(w.limit - time.Since(before.started))
	defer timeout.Stop()
	select {
	case <-before.returned:
		return nil
	case <-timeout.C:
		return before.hung()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *Watchdog) end(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, a.about)
	close(a.returned)
}

// LeftBehind names a call that has not returned; nil when there is none.
func (w *Watchdog) LeftBehind() error { return w.older("", 0) }

// Hung names a call that was given up and has not returned; nil when there is none.
func (w *Watchdog) Hung() error { return w.older("", w.limit) }

// HungAbout is Hung of what has a name that begins so. It is for who gives each call a name of its own,
// which does not keep the next one from being made, and hanging as well.
func (w *Watchdog) HungAbout(prefix string) error { return w.older(prefix, w.limit) }

// Settle waits until no call is under way, or the context ends.
func (w *Watchdog) Settle(ctx context.Context) {
	for a := w.one(); a != nil; a = w.one() {
		select {
		case <-a.returned:
		case <-ctx.Done():
			return
		}
	}
}

// one is a call that is under way; nil for none.
func (w *Watchdog) one() *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.running {
		return a
	}
	return nil
}

// older names a call under way, about something whose name begins so, that is of that age at least.
func (w *Watchdog) older(prefix string, age time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, about := range slices.Sorted(maps.Keys(w.running)) {
		if a := w.running[about]; strings.HasPrefix(about, prefix) && time.Since(a.started) >= age {
			return a.hung()
		}
	}
	return nil
}

// HungError tells that a call did not come back in time, now or earlier.
type HungError struct {
	// Call is the C function that hangs, About the GPU or the library it was asked about.
	Call, About string
}

func (e *HungError) Error() string {
	return fmt.Sprintf("%s about %s does not return", e.Call, e.About)
}

// Is makes the error an inventory.ErrHung.
func (e *HungError) Is(target error) bool { return target == inventory.ErrHung }

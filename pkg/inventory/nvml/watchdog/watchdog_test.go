package watchdog_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
)

const limit = 10 * time.Second

// sleeping is a call that takes a time.
func sleeping(d time.Duration) func() int {
	return func() int {
		time.Sleep(d)
		return 7
	}
}

func TestACallInTime(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		got, err := watchdog.Watch(t.Context(), watchdog.New(limit), "a", "call", sleeping(limit-1))
		if got != 7 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	})
}

func TestACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin := watchdog.New(limit), time.Now()
		hung := func(about string, want time.Duration) {
			t.Helper()
			got, err := watchdog.Watch(t.Context(), w, about, "second", sleeping(0))
			var reason *watchdog.HungError
			if got != 0 || !errors.As(err, &reason) || !errors.Is(err, inventory.ErrHung) || reason.Call != "first" {
				t.Errorf("got %d, %v", got, err)
			}
			if waited := time.Since(begin); waited != want {
				t.Errorf("waited %v, want %v", waited, want)
			}
		}
		if _, err := watchdog.Watch(t.Context(), w, "a", "first", sleeping(time.Minute)); !errors.Is(err, inventory.ErrHung) {
			t.Errorf("error is %v", err)
		}
		// What hangs is refused at once; what does not is served.
		hung("a", limit)
		if got, err := watchdog.Watch(t.Context(), w, "b", "other", sleeping(0)); got != 7 || err != nil {
			t.Errorf("another GPU: %d, %v", got, err)
		}
		if err := w.LeftBehind(); !errors.Is(err, inventory.ErrHung) {
			t.Errorf("left behind: %v", err)
		}
		time.Sleep(time.Minute)
		if got, err := watchdog.Watch(t.Context(), w, "a", "again", sleeping(0)); got != 7 || err != nil {
			t.Errorf("after it returned: %d, %v", got, err)
		}
		if err := w.LeftBehind(); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
}

func TestALibraryThatHangsStopsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchdog.New(limit)
		for range 2 {
			if _, err := watchdog.Watch(t.Context(), w, watchdog.Library, "first", sleeping(time.Minute)); !errors.Is(err, inventory.ErrHung) {
				t.Errorf("error is %v", err)
			}
		}
		if _, err := watchdog.Watch(t.Context(), w, "a", "second", sleeping(0)); !errors.Is(err, inventory.ErrHung) {
			t.Errorf("error is %v", err)
		}
		time.Sleep(time.Minute)
		if got, err := watchdog.Watch(t.Context(), w, "a", "third", sleeping(0)); got != 7 || err != nil {
			t.Errorf("after it returned: %d, %v", got, err)
		}
	})
}

// A call whose caller went away has not hung yet: the next one waits for it, within its own bound.
func TestACallThatWasLeftByItsCaller(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		hangs bool
	}{"slow": {5 * time.Second, false}, "hangs": {time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchdog.New(limit)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := watchdog.Watch(ctx, w, "a", "first", sleeping(c.takes)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error is %v", err)
				}
				waiting, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				if _, err := watchdog.Watch(waiting, w, "a", "second", sleeping(0)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error is %v", err)
				}
				got, err := watchdog.Watch(t.Context(), w, "a", "third", sleeping(0))
				if hung := errors.Is(err, inventory.ErrHung); hung != c.hangs || (got == 7) == c.hangs {
					t.Errorf("got %d, %v", got, err)
				}
				// The bubble ends when the first call has returned.
				time.Sleep(c.takes)
			})
		})
	}
}

// Callers that never have the time to wait for a call learn that it hangs, too.
func TestACallThatHangsForImpatientCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin := watchdog.New(limit), time.Now()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), limit/4)
			_, err := watchdog.Watch(ctx, w, "a", "call", sleeping(time.Hour))
			cancel()
			if errors.Is(err, inventory.ErrHung) {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > limit {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
		}
		time.Sleep(time.Hour)
	})
}

// A call that is under way is left behind by who ends now, but hangs only once it was given up.
func TestACallHangsFromItsLimitOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchdog.New(limit)
		ctx, cancel := context.WithTimeout(t.Context(), limit-1)
		defer cancel()
		if _, err := watchdog.Watch(ctx, w, "a", "call", sleeping(time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if left, hung := w.LeftBehind(), w.Hung(); left == nil || hung != nil {
			t.Errorf("before its limit: left behind %v, hung %v", left, hung)
		}
		time.Sleep(time.Nanosecond)
		if err := w.Hung(); !errors.Is(err, inventory.ErrHung) {
			t.Errorf("from its limit on: %v", err)
		}
		if a, b := w.HungAbout("a"), w.HungAbout("b"); !errors.Is(a, inventory.ErrHung) || b != nil {
			t.Errorf("about a: %v, about b: %v", a, b)
		}
		time.Sleep(time.Minute)
		if err := w.Hung(); err != nil {
			t.Errorf("after it returned: %v", err)
		}
	})
}

// Who settles waits for what is under way, but not longer than the context.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin := watchdog.New(limit), time.Now()
		w.Settle(t.Context())
		for about, d := range map[string]time.Duration{"a": time.Second, "b": 3 * time.Second} {
			go func() { _, _ = watchdog.Watch(t.Context(), w, about, "call", sleeping(d)) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		w.Settle(ctx)
		if waited := time.Since(begin); waited != 2*time.Second || w.LeftBehind() == nil {
			t.Errorf("waited %v; left behind: %v", waited, w.LeftBehind())
		}
		w.Settle(t.Context())
		if waited := time.Since(begin); waited != 3*time.Second || w.LeftBehind() != nil {
			t.Errorf("waited %v; left behind: %v", waited, w.LeftBehind())
		}
	})
}

func TestNoCallAfterTheContextEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := watchdog.Watch(ctx, watchdog.New(limit), "a", "call", func() int { t.Error("called"); return 0 })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func BenchmarkWatch(b *testing.B) {
	w := watchdog.New(limit)
	for b.Loop() {
		if _, err := watchdog.Watch(b.Context(), w, "a", "call", sleeping(0)); err != nil {
			b.Fatal(err)
		}
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
)

// Session is the time between nvmlInit and nvmlShutdown.
type Session struct {
	// API makes the calls; each belongs into Ask.
	API API
	// Opened is when it began.
	Opened   time.Time
	watchdog *watchdog.Watchdog
	// calls are those that this driver's library has.
	calls map[string]bool
}

// Has tells whether the driver's library has a call; of those in Options.
func (s *Session) Has(call string) bool { return s.calls[call] }

// About begins to ask about a GPU, by its address, or about something else of its own.
func (s *Session) About(ctx context.Context, about string) *Asker {
	return &Asker{Session: s, ctx: ctx, about: about}
}

// AboutLibrary begins to ask about the node as a whole.
func (s *Session) AboutLibrary(ctx context.Context) *Asker { return s.About(ctx, watchdog.Library) }

// Call makes one call about a GPU, by its address, or about something else of its own, under the
// watchdog. It fails with HungError, CallError, or that of ctx; inventory.ErrNotSupported where the
// library lacks the call. After a HungError f still runs.
func (s *Session) Call(ctx context.Context, about, call string, f func(API) Return) error {
	return Ask(s.About(ctx, about), call, func() (struct{}, Return) { return struct{}{}, f(s.API) }).Err
}

// HungAbout names a call about something whose name begins so, that was given up and has not returned;
// nil when there is none.
func (s *Session) HungAbout(prefix string) error { return s.watchdog.HungAbout(prefix) }

// Asker asks NVML about one thing in one session. It lives no longer than the reading whose context
// it has.
type Asker struct {
	Session *Session
	// End is why asking on is of no use: the GPU is lost, a call hangs, the context ended.
	End   error
	ctx   context.Context
	about string
}

// Rename says that what is asked about has turned out to be that.
func (a *Asker) Rename(about string) { a.about = about }

// Ask makes one call, unless asking is of no use or the driver does not have it.
func Ask[T any](a *Asker, symbol string, call func() (T, Return)) inventory.Fact[T] {
	if a.End != nil {
		return inventory.Unknown[T](a.End)
	}
	if !a.Session.Has(symbol) {
		return inventory.Unknown[T](fmt.Errorf("%s is not in this driver's library: %w", symbol, inventory.ErrNotSupported))
	}
	fact, err := watchdog.Watch(a.ctx, a.Session.watchdog, a.about, symbol, func() inventory.Fact[T] {
		value, ret := call()
		return inventory.Fact[T]{Value: value, Err: Failure(symbol, ret)}
	})
	if err != nil {
		a.End = err
		return inventory.Unknown[T](err)
	}
	if errors.Is(fact.Err, inventory.ErrLost) {
		a.End = fact.Err
	}
	return fact
}

package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
)

// defaultCallTimeout leaves room below the kubelet's 45 s for a call and stays above the 10 s
// that lookups were seen to take on busy nodes.
const defaultCallTimeout = 20 * time.Second

// errEnded says that NVML has to be initialised again, as after a reload of the kernel module.
var errEnded = errors.New("the session with the driver has ended")

// API is go-nvml's interface, for packages that hand it on to a library.
type API = nvml.Interface

// Return is the code that a call gives.
type Return = nvml.Return

// Options say where the library is.
type Options struct {
	// Root is the driver root as this process sees it.
	Root string
	// Path names the library's file; Root is not searched then.
	Path string
	// CallTimeout bounds each call; 0 means 20 s.
	CallTimeout time.Duration
	// Required are C functions without which a library is of no use, Calls others that its users
	// want to make.
	Required, Calls []string
}

// Library is the driver's library, opened when it is first needed and again after it went away.
// Make one a process. It may be used concurrently.
type Library struct {
	options  Options
	watchdog *watchdog.Watchdog
	// turn is held by who reads, opens or closes; it guards bound. A reading may wait long for a
	// GPU that hangs: who works with one GPU borrows the session without a turn.
	turn  chan struct{}
	bound *binding
	// mu guards the fields below. Who has the turn may read session without it.
	mu        sync.Mutex
	session   *Session
	borrowers int
	loan      account
}

// errBusy says that the session is in use.
var errBusy = errors.New("the driver's library stays open")

// binding is the file that this process's calls are bound to for ever.
type binding struct {
	path string
	file os.FileInfo
	api  nvml.Interface
}

// New makes a Library; nothing is opened yet.
func New(o Options) *Library {
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	return &Library{options: o, watchdog: watchdog.New(o.CallTimeout), turn: make(chan struct{}, 1)}
}

// Renewing runs a reading of the node in the session, which it opens if need be. It runs the reading
// once more, in a new session, where the file of the library changed, the session turns out to have
// ended, or the reading says that a new one is worth it; unless somebody works with the one that is
// open. The error is that of the last reading, or why there is no session: NotFoundError,
// UnusableError, ReplacedError, HungError or that of ctx. Readings exclude each other.
func (l *Library) Renewing(ctx context.Context, read func(*Session) (again bool, err error)) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	var left error
	if l.session != nil && l.fileChanged() {
		// An open session would answer on, though containers get other files by now, or none.
		left = l.shutdown(ctx, true)
	}
	fresh := l.session == nil
	again, err := l.opened(ctx, read)
	if err != nil && left != nil && !errors.Is(left, errBusy) {
		err = errors.Join(err, left)
	}
	if fresh || !again && !errors.Is(err, errEnded) {
		return err
	}
	closing := l.shutdown(ctx, true)
	if errors.Is(closing, errBusy) {
		return err
	}
	if _, err = l.opened(ctx, read); err != nil {
		// A shutdown that failed matters only if it explains why nothing works after it.
		err = errors.Join(err, closing)
	}
	return err
}

// opened runs a reading in the session.
func (l *Library) opened(ctx context.Context, read func(*Session) (bool, error)) (again bool, err error) {
	if err := l.open(ctx); err != nil {
		return false, err
	}
	return read(l.session)
}

// Use opens the library if need be and runs f with it under the watchdog, as a call about the
// library as a whole named what. On a HungError f is still running. f may nest Init and
// Shutdown, in pairs; it must not keep the API.
func (l *Library) Use(ctx context.Context, what string, f func(API) error) error {
	s, release, err := l.Borrow(ctx)
	if err != nil {
		return err
	}
	defer release()
	failed, err := watchdog.Watch(ctx, l.watchdog, watchdog.Library, what, func() error { return f(s.API) })
	return errors.Join(err, failed)
}

// Close ends the session, so that this process holds no device node open and the kernel module
// can be unloaded. The next Read or Use opens the library again: who closes it for others keeps
// from calling them. It fails with HungError while a call is left behind.
func (l *Library) Close(ctx context.Context) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if l.session == nil {
		return nil
	}
	return l.shutdown(ctx, false)
}

// Apart runs work while this process has no session with the driver, and opens none: for tools that
// refuse a GPU that somebody has open. It fails, without work, while somebody works with the session.
func (l *Library) Apart(ctx context.Context, work func(context.Context) error) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if l.session != nil {
		if err := l.shutdown(ctx, true); err != nil {
			return err
		}
	}
	return work(ctx)
}

// take gives the session to who ends it, and nobody else gets it any more. The error, an errBusy,
// says who still works with it.
func (l *Library) take() (*Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.borrowers > 0 {
		return nil, fmt.Errorf("%w: %d operations are under way", errBusy, l.borrowers)
	}
	if err := l.watchdog.LeftBehind(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBusy, err)
	}
	s := l.session
	l.session = nil
	return s, nil
}

func (l *Library) begin(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Library) end() { <-l.turn }

// shutdown drops the session if nobody works with it, whatever NVML answers: after an error it is
// of no use either. Who is patient waits for calls whose callers have gone, such as a wait for events;
// for a bounded time. The caller has the turn.
func (l *Library) shutdown(ctx context.Context, patient bool) error {
	if err := l.watchdog.Hung(); err != nil {
		// It keeps the session: who listens for errors of the other GPUs would return it in vain,
		// and hear nothing meanwhile.
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	defer l.recall(ctx, patient)()
	s, err := l.take()
	if err != nil {
		return err
	}
	failed, err := watchdog.Watch(ctx, l.watchdog, watchdog.Library, symShutdown, func() error { return Failure(symShutdown, s.API.Shutdown()) })
	if errors.Is(failed, errEnded) {
		failed = nil
	}
	return errors.Join(err, failed)
}

// open starts a session if there is none.
func (l *Library) open(ctx context.Context) error {
	if l.session != nil {
		return nil
	}
	path, file, err := l.find()
	if err != nil {
		return err
	}
	if l.bound != nil && !os.SameFile(l.bound.file, file) {
		return &ReplacedError{Bound: l.bound.path, Found: path}
	}
	type probed struct {
		symbols map[string]bool
		err     error
	}
	p, err := watchdog.Watch(ctx, l.watchdog, watchdog.Library, "dlopen", func() probed {
		symbols, err := probe(path, append(own(), l.options.Required...), l.options.Calls)
		return probed{symbols, err}
	})
	if err = errors.Join(err, p.err); err != nil {
		return &UnusableError{Path: path, Cause: err}
	}
	if l.bound == nil {
		// From the first call on.
		l.bound = &binding{path: path, file: file, api: nvml.New(nvml.WithLibraryPath(path))}
	}
	return l.initialise(ctx, p.symbols)
}

// initialise calls nvmlInit in the library that the process is bound to.
func (l *Library) initialise(ctx context.Context, symbols map[string]bool) error {
	api, path := l.bound.api, l.bound.path
	type outcome struct {
		ret nvml.Return
		err error
	}
	o, err := watchdog.Watch(ctx, l.watchdog, watchdog.Library, symInit, func() outcome {
		ret := api.Init()
		return outcome{ret, Failure(symInit, ret)}
	})
	if err = errors.Join(err, o.err); err != nil {
		return &UnusableError{Path: path, Advice: adviceFor(o.ret), Cause: err}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = &Session{API: api, Opened: time.Now(), watchdog: l.watchdog, calls: symbols}
	return nil
}

// fileChanged tells whether the library's file is gone or another one is in its place: the driver
// was removed or replaced. A file system that does not answer says nothing.
func (l *Library) fileChanged() bool {
	_, file, err := l.find()
	var none *NotFoundError
	return errors.As(err, &none) || errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(l.bound.file, file)
}

func (l *Library) find() (string, os.FileInfo, error) {
	path := l.options.Path
	if path == "" {
		found, err := Locate(l.options.Root)
		if err != nil {
			return "", nil, err
		}
		path = found
	}
	file, err := os.Stat(path)
	if err != nil {
		return "", nil, fmt.Errorf("the driver's library: %w", err)
	}
	return path, file, nil
}

// The calls of this package. All are in drivers since R396.
const (
	symInit        = "nvmlInit_v2"
	symShutdown    = "nvmlShutdown"
	symErrorString = "nvmlErrorString"
)

func own() []string { return []string{symInit, symShutdown, symErrorString} }

// probe loads the library aside and looks for the calls we may make. go-nvml offers that only
// after Init, and a call to a symbol that is missing ends the process.
func probe(path string, required, optional []string) (map[string]bool, error) {
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return nil, err
	}
	symbols := map[string]bool{}
	var missing []error
	for _, name := range required {
		if err := library.Lookup(name); err != nil {
			missing = append(missing, err)
		}
		symbols[name] = true
	}
	for _, name := range optional {
		symbols[name] = library.Lookup(name) == nil
	}
	if err := errors.Join(missing...); err != nil {
		return nil, errors.Join(fmt.Errorf("it is no NVML or too old: %w", err), library.Close())
	}
	return symbols, library.Close()
}

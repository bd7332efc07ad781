package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// Process is one process of this boot: a number is used again, with another start.
type Process struct {
	PID int `json:"pid"`
	// Started is in the kernel's ticks since boot.
	Started uint64 `json:"started"`
}

// Programs runs control daemons; control.Control is one. A daemon's directory is made by Start.
type Programs interface {
	// Start starts a daemon, without limits, in place of all that runs under its name, and
	// returns its process when it listens and limit has given it its limits. Where that fails
	// nothing runs on: a daemon without its limits would serve all the same.
	Start(ctx context.Context, name string, spec mps.Spec, limit func() error) (Process, error)
	// Command has a daemon carry out one command and gives its answer.
	Command(ctx context.Context, name, line string) (string, error)
	// Find gives the daemon's process, whoever started it.
	Find(name string) (Process, bool)
	// Wait returns when the process has ended.
	Wait(ctx context.Context, p Process) error
	// Remove ends all processes of a daemon, its servers too, and removes its directory, with
	// files below it that are in use. It finds nothing to do where there is nothing.
	Remove(ctx context.Context, name string) error
}

// Config is what a Supervisor works with.
type Config struct {
	Layout   mps.Layout
	Programs Programs
	// Boot is the kernel's boot id.
	Boot string
	// Pause gives the time before the n-th try to start a daemon that died, n from 0; nil
	// means 100 ms, doubled up to 10 s.
	Pause func(n int) time.Duration
}

// The bounds of the work for one request, under the kubelet's 45 s.
const (
	ensureLimit = 30 * time.Second
	stopLimit   = 20 * time.Second
	// adoptLimit is how long a daemon may take to answer a new supervisor.
	adoptLimit = 10 * time.Second
)

// Supervisor has daemons running. Its methods may be called concurrently.
type Supervisor struct {
	config Config
	store  store
	// life ends with Run; what watches daemons lives as long.
	life    context.Context
	watches sync.WaitGroup

	mu      sync.Mutex
	daemons map[string]*daemon
}

// New returns a Supervisor that watches daemons until the context ends. The daemons live on.
func New(ctx context.Context, config Config) *Supervisor {
	if config.Pause == nil {
		config.Pause = func(n int) time.Duration { return min(100*time.Millisecond<<min(n, 10), 10*time.Second) }
	}
	return &Supervisor{config: config, store: store{config.Layout}, life: ctx, daemons: map[string]*daemon{}}
}

// Wait returns when nothing is watched any more, after the end of the context of New.
func (s *Supervisor) Wait() { s.watches.Wait() }

// Adopt takes over what an earlier supervisor left, and ends what nobody wants. It returns when
// all that is known to run is known; what has to be started is started afterwards.
func (s *Supervisor) Adopt(ctx context.Context) error {
	names, err := s.store.names()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, name := range names {
		// In its turn from before anybody can ask.
		d := s.get(name)
		release, err := d.take(ctx)
		if err != nil {
			return err
		}
		all.Go(func() {
			defer release()
			s.adopt(ctx, d)
		})
	}
	all.Wait()
	return nil
}

func (s *Supervisor) adopt(ctx context.Context, d *daemon) {
	logger := klog.FromContext(ctx).WithValues("daemon", d.name)
	e, wanted := s.store.read(d.name)
	switch {
	case !wanted:
		logger.Info("Removing what is left of a control daemon that nobody wants", "error", s.config.Programs.Remove(ctx, d.name))
		s.drop(d)
	case e.Boot != s.config.Boot:
		d.set(func(state *stateOf) {
			state.spec, state.message = e.Spec, "not started since the reboot: no claim asked for it"
		})
	case s.answers(ctx, d.name, e.Process):
		logger.Info("Adopted", "pid", e.Process.PID)
		s.serve(d, e) //nolint:contextcheck // it is watched for longer than the call
	default:
		d.set(func(state *stateOf) {
			// A failed start forgets the process and keeps the count.
			served := e.Process != (Process{}) || e.Restarts > 0
			*state = stateOf{spec: e.Spec, served: served, restarts: e.Restarts, message: "died without a supervisor"}
		})
		s.revive(d) //nolint:contextcheck // it is tried for longer than the call
	}
}

// answers tells whether the process that got its limits runs and answers.
func (s *Supervisor) answers(ctx context.Context, name string, p Process) bool {
	if found, ok := s.config.Programs.Find(name); !ok || found != p {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	_, err := s.config.Programs.Command(ctx, name, cmdServers)
	return err == nil
}

// Ensure has a daemon running as the spec says and returns when it serves. One that runs with
// another spec is ended first: whoever asks knows that nobody needs it.
func (s *Supervisor) Ensure(ctx context.Context, name string, spec mps.Spec) (mps.Status, error) {
	return s.ensure(ctx, name, spec, func() bool { return true })
}

var errGivenUp = errors.New("the caller has given up")

// ensure is Ensure for a caller that may give up. It then has the daemon stopped, and that may have
// come to pass before this has its turn: nobody would ever end what is started now.
func (s *Supervisor) ensure(ctx context.Context, name string, spec mps.Spec, waits func() bool) (mps.Status, error) {
	d, release, err := s.takeNamed(ctx, name)
	if err != nil {
		return mps.Status{}, err
	}
	defer release()
	if !waits() {
		if now := d.get(); len(now.spec.Devices) == 0 && now.message == "" {
			s.drop(d) // it became known by this call alone
		}
		return mps.Status{}, fmt.Errorf("MPS control daemon %s: %w", name, errGivenUp)
	}
	now := d.status()
	if now.Ready && now.Spec.Equal(spec) {
		return now, nil
	}
	if err := s.start(ctx, d, spec); err != nil {
		// Nothing of it must stay, whatever became of the caller.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if served := now.Served && now.Spec.Equal(spec); served {
			// Others use it: it is tried again until it is stopped.
			s.revive(d) //nolint:contextcheck // it is tried for longer than the call
			return mps.Status{}, err
		}
		return mps.Status{}, errors.Join(err, s.forget(ctx, d))
	}
	return d.status(), nil
}

// Stop ends a daemon and removes what was its.
func (s *Supervisor) Stop(ctx context.Context, name string) error {
	d, release, err := s.takeNamed(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	return s.forget(ctx, d)
}

// forget ends a daemon. Where that fails it stays known, and not wanted. The caller has its turn.
func (s *Supervisor) forget(ctx context.Context, d *daemon) error {
	if err := s.store.forget(d.name); err != nil {
		return fmt.Errorf("forget MPS control daemon %s: %w", d.name, err)
	}
	d.set(func(state *stateOf) { *state = stateOf{} })
	if err := s.config.Programs.Remove(ctx, d.name); err != nil {
		d.set(func(state *stateOf) { state.message = err.Error() })
		return err
	}
	s.drop(d)
	return nil
}

// List tells of all daemons, sorted by name.
func (s *Supervisor) List() []mps.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]mps.Status, 0, len(s.daemons))
	for _, d := range s.daemons {
		out = append(out, d.status())
	}
	slices.SortFunc(out, func(a, b mps.Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

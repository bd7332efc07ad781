package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// daemon is one control daemon that is known. Who starts or ends it has its turn.
type daemon struct {
	name string
	turn chan struct{}

	mu    sync.Mutex
	state stateOf
}

// stateOf is what is known of a daemon.
type stateOf struct {
	spec    mps.Spec
	process Process
	ready   bool
	// served tells that it has served with this spec: there may be clients.
	served bool
	// restarts is how often it was started again with this spec.
	restarts int
	message  string
	// gone tells that the supervisor forgot this daemon: who waited for its turn looks again.
	gone bool
	// era counts starts and ends, so that who watched an earlier process knows.
	era int
}

func (d *daemon) get() stateOf {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// set changes the state and begins a new era.
func (d *daemon) set(change func(*stateOf)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	era := d.state.era + 1
	change(&d.state)
	d.state.era = era
}

func (d *daemon) status() mps.Status {
	now := d.get()
	return mps.Status{
		Name: d.name, Spec: now.spec, Ready: now.ready, Served: now.served, Restarts: now.restarts,
		PID: now.process.PID, Started: now.process.Started, Message: now.message,
	}
}

// take waits for the daemon's turn.
func (d *daemon) take(ctx context.Context) (release func(), err error) {
	select {
	case d.turn <- struct{}{}:
		return func() { <-d.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("MPS control daemon %s is being started or ended: %w", d.name, context.Cause(ctx))
	}
}

// get makes a daemon known.
func (s *Supervisor) get(name string) *daemon {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.daemons[name]
	if !ok {
		d = &daemon{name: name, turn: make(chan struct{}, 1)}
		s.daemons[name] = d
	}
	return d
}

// takeNamed waits for the turn of the daemon that has the name now.
func (s *Supervisor) takeNamed(ctx context.Context, name string) (*daemon, func(), error) {
	for {
		d := s.get(name)
		release, err := d.take(ctx)
		if err != nil {
			return nil, nil, err
		}
		if !d.get().gone {
			return d, release, nil
		}
		release()
	}
}

// drop forgets a daemon of which nothing is left.
func (s *Supervisor) drop(d *daemon) {
	d.set(func(state *stateOf) { *state = stateOf{gone: true} })
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.daemons, d.name)
}

// start starts a daemon in place of whatever runs under its name. The caller has its turn.
func (s *Supervisor) start(ctx context.Context, d *daemon, spec mps.Spec) error {
	before := d.get()
	wanted := entry{Boot: s.config.Boot, Spec: spec}
	served := before.served && before.spec.Equal(spec)
	if served {
		wanted.Restarts = before.restarts + 1
	}
	d.set(func(state *stateOf) {
		*state = stateOf{spec: spec, served: served, restarts: before.restarts, message: "is being started"}
	})
	process, err := s.launch(ctx, d.name, wanted)
	if err != nil {
		d.set(func(state *stateOf) { state.message = err.Error() })
		return err
	}
	klog.FromContext(ctx).Info("MPS control daemon serves", "daemon", d.name, "pid", process.PID)
	wanted.Process = process
	s.serve(d, wanted) //nolint:contextcheck // it is watched for longer than the call
	return nil
}

// launch starts the programs and gives them their limits. The entry is there before the process
// and knows the process only once it has its limits.
func (s *Supervisor) launch(ctx context.Context, name string, wanted entry) (Process, error) {
	if err := s.store.write(name, wanted); err != nil {
		return Process{}, err
	}
	process, err := s.config.Programs.Start(ctx, name, wanted.Spec, func() error {
		if err := configure(ctx, s.config.Programs, name, wanted.Spec); err != nil {
			return err
		}
		return endEarlyServers(ctx, s.config.Programs, name)
	})
	if err != nil {
		return Process{}, fmt.Errorf("start: %w", err)
	}
	wanted.Process = process
	return process, s.store.write(name, wanted)
}

// serve notes that a process serves and watches it.
func (s *Supervisor) serve(d *daemon, e entry) {
	process := e.Process
	d.set(func(state *stateOf) {
		*state = stateOf{spec: e.Spec, process: process, ready: true, served: true, restarts: e.Restarts}
	})
	era := d.get().era
	s.watches.Go(func() {
		if err := s.config.Programs.Wait(s.life, process); s.life.Err() != nil {
			return
		} else if err != nil {
			klog.FromContext(s.life).Error(err, "Watching an MPS control daemon failed", "daemon", d.name)
		}
		s.again(d, era, "the process ended")
	})
}

// revive starts a daemon that should run, in the background. The caller has its turn.
func (s *Supervisor) revive(d *daemon) {
	era := d.get().era
	s.watches.Go(func() { s.again(d, era, d.get().message) })
}

// again starts a daemon until it serves, as long as it is in the era.
func (s *Supervisor) again(d *daemon, era int, why string) {
	for try := 0; ; try++ {
		release, err := d.take(s.life)
		if err != nil {
			return
		}
		now := d.get()
		if now.era != era {
			release()
			return
		}
		klog.FromContext(s.life).Info("Starting an MPS control daemon again", "daemon", d.name, "reason", why, "try", try)
		ctx, cancel := context.WithTimeout(s.life, ensureLimit)
		err = s.start(ctx, d, now.spec)
		era = d.get().era
		cancel()
		release()
		if err == nil {
			return
		}
		why = err.Error()
		timer := time.NewTimer(s.config.Pause(try))
		select {
		case <-timer.C:
		case <-s.life.Done():
			timer.Stop()
			return
		}
	}
}

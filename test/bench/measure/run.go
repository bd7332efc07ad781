package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Options of a whole run.
type Options struct {
	// Source is the root of the repository, Bin the directory with kube-apiserver and etcd, Dir an empty directory
	// on the file system to measure.
	Source, Bin, Dir string
	// Rounds of every measurement, PerRound claims in each.
	Rounds, PerRound int
	// Only are the parts to run; all where it is empty.
	Only map[string]bool
	// Idle is how long the idle plugin is watched at least.
	Idle time.Duration
	// Report is where the Markdown goes, Progress where a person looks meanwhile.
	Report, Progress io.Writer
}

// preset is the machine that is measured.
const preset = "hgx-h100-8"

// run is a run under way.
type run struct {
	Options
	began    time.Time
	api      bed.API
	programs bed.Programs
	machines int
}

// Parts are the names of the measurements, in their order.
func Parts() []string {
	return []string{"memory", "prepare", "metadata", "small", "callers", "starts", "presets", "partitions", "placement", "health", "idle"}
}

// Run measures everything and writes a report. It takes about five minutes.
func Run(ctx context.Context, o Options) error {
	r := &run{Options: o, began: time.Now()}
	if len(r.Only) == 0 {
		r.Only = map[string]bool{}
		for _, part := range Parts() {
			r.Only[part] = true
		}
	}
	r.say("build the plugin")
	var err error
	if r.programs, err = bed.Build(ctx, o.Source, filepath.Join(o.Source, "bin", "bench")); err != nil {
		return err
	}
	if r.api, err = r.startAPI(ctx); err != nil {
		return err
	}
	err = r.measure(ctx)
	return errors.Join(err, r.api.Close())
}

// startAPI starts a real API server, or says that it is not there.
func (r *run) startAPI(ctx context.Context) (bed.API, error) {
	r.say("start the API server")
	api, err := bed.StartKubernetes(ctx, r.Bin, filepath.Join(r.Dir, "api"))
	if errors.Is(err, bed.ErrNoPrograms) {
		r.say("%v; measuring with the small one of test/kubeapi (test/cluster builds the real one)", err)
		return bed.StartSmall()
	}
	return api, err
}

// measure runs the parts, the idle plugin beside all others.
func (r *run) measure(ctx context.Context) error {
	client, err := bed.Client(r.api, bed.Operator)
	if err != nil {
		return err
	}
	if err := bed.SetScene(ctx, client); err != nil {
		return err
	}
	r.report("API server: %s. Load average at the start: %s.", r.api.Name(), load())
	if !r.Only["idle"] {
		return r.parts(ctx)
	}
	m, err := r.machine(ctx, r.api)
	if err != nil {
		return err
	}
	defer m.Close()
	var idle Idle
	group, gctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	group.Go(func() (err error) {
		idle, err = WatchIdle(gctx, r.api, m, func(ctx context.Context) error { return atLeast(ctx, r.Idle, done) })
		return err
	})
	group.Go(func() error {
		defer close(done)
		return r.parts(gctx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	r.report("%s", idle)
	r.report("Load average at the end: %s.", load())
	return nil
}

// atLeast waits for done and at least d.
func atLeast(ctx context.Context, d time.Duration, done <-chan struct{}) error {
	if err := pause(ctx, d); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// parts runs all parts but the idle one.
func (r *run) parts(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"memory", r.memory},
		{"prepare", r.prepare},
		{"metadata", r.metadata},
		{"small", r.small},
		{"callers", r.callers},
		{"starts", r.starts},
		{"presets", r.presets},
		{"partitions", r.partitions},
		{"placement", r.placement},
		{"health", r.health},
	} {
		if !r.Only[part.name] {
			continue
		}
		r.say("measure %s (load %s)", part.name, load())
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("measure %s: %w", part.name, err)
		}
	}
	return nil
}

// machine makes a new machine on an API server.
func (r *run) machine(ctx context.Context, api bed.API) (*bed.Machine, error) {
	r.machines++
	return bed.NewMachine(ctx, api, r.programs, r.Dir, fmt.Sprintf("m%d", r.machines), preset)
}

// fillings is the largest number of claims that are prepared already.
const fillings = 256

// with runs do with a plugin on a new machine.
func (r *run) with(ctx context.Context, api bed.API, flags []string, do func(Subject) error) error {
	m, err := r.machine(ctx, api)
	if err != nil {
		return err
	}
	defer m.Close()
	p, err := m.Start(ctx, bed.Options{Flags: flags})
	if err != nil {
		return err
	}
	slices, err := p.Published(ctx)
	if err != nil {
		return err
	}
	if err := p.Registered(ctx); err != nil {
		return err
	}
	claims, err := m.NewClaims(ctx, slices, fillings)
	if err != nil {
		return err
	}
	if err := do(Subject{Machine: m, Plugin: p, Claims: claims}); err != nil {
		return err
	}
	waits, err := throttled(p.Log())
	if waits > 0 {
		r.report("The plugin's client made itself wait %d times.", waits)
	}
	return errors.Join(err, p.Stop(ctx))
}

func (r *run) say(format string, args ...any) {
	// A terminal that has gone away must not stop the work.
	_, _ = fmt.Fprintf(r.Progress, "[%4.0fs] %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *run) report(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Report, format+"\n", args...)
}

// load is the machine's load average.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	const averages = 3
	return strings.Join(strings.Fields(string(text))[:averages], " ")
}

func (r *run) prepare(ctx context.Context) error {
	return r.with(ctx, r.api, nil, func(s Subject) error {
		p, err := TimePrepares(ctx, "Prepare and unprepare", s, PrepareOptions{Levels: []int{0, 64, fillings}, Rounds: r.Rounds, PerRound: r.PerRound})
		if err != nil {
			return err
		}
		r.report("%s\n%s", p, p.FileSizes())
		return nil
	})
}

func (r *run) metadata(ctx context.Context) error {
	return r.with(ctx, r.api, []string{"--device-metadata=false"}, func(s Subject) error {
		p, err := TimePrepares(ctx, "The same without metadata files", s, PrepareOptions{Levels: []int{0, fillings}, Rounds: r.Rounds, PerRound: r.PerRound})
		if err != nil {
			return err
		}
		r.report("%s", p)
		return nil
	})
}

func (r *run) small(ctx context.Context) error {
	api, err := bed.StartSmall()
	if err != nil {
		return err
	}
	client, err := bed.Client(api, bed.Operator)
	if err != nil {
		return errors.Join(err, api.Close())
	}
	if err := bed.SetScene(ctx, client); err != nil {
		return errors.Join(err, api.Close())
	}
	err = r.with(ctx, api, nil, func(s Subject) error {
		p, err := TimePrepares(ctx, "The same with the small API server of test/kubeapi", s, PrepareOptions{Levels: []int{0, fillings}, Rounds: r.Rounds, PerRound: r.PerRound})
		if err != nil {
			return err
		}
		r.report("%s", p)
		return nil
	})
	return errors.Join(err, api.Close())
}

func (r *run) callers(ctx context.Context) error {
	err := r.with(ctx, r.api, []string{"--kube-api-qps=10000", "--kube-api-burst=10000"}, func(s Subject) error {
		c, err := RateCallers(ctx, s, r.Rounds, r.PerRound)
		if err != nil {
			return err
		}
		r.report("%s", c)
		return nil
	})
	if err != nil {
		return err
	}
	return r.with(ctx, r.api, []string{"--v=3"}, func(s Subject) error {
		b, err := TimeBurst(ctx, s, 192, len(s.Claims.Whole), min(r.Rounds, 3))
		if err != nil {
			return err
		}
		r.report("%s", b)
		return nil
	})
}

func (r *run) starts(ctx context.Context) error {
	m, claims, err := r.prepared(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := TimeStarts(ctx, r.api, m, claims, r.Rounds)
	if err != nil {
		return err
	}
	r.report("%s", s)
	return nil
}

// prepared makes a machine with claims, on which no plugin runs.
func (r *run) prepared(ctx context.Context) (m *bed.Machine, claims bed.Claims, err error) {
	if m, err = r.machine(ctx, r.api); err != nil {
		return nil, claims, err
	}
	p, err := m.Start(ctx, bed.Options{})
	if err != nil {
		return nil, claims, err
	}
	slices, err := p.Published(ctx)
	if err != nil {
		return nil, claims, err
	}
	if claims, err = m.NewClaims(ctx, slices, fillings); err != nil {
		return nil, claims, err
	}
	return m, claims, p.Stop(ctx)
}

func (r *run) memory(ctx context.Context) error {
	m, claims, err := r.prepared(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	memories, err := WeighMemory(ctx, m, r.programs.Plugin, claims, min(r.Rounds, 3))
	if err != nil {
		return err
	}
	r.report("%s", memories)
	return nil
}

func (r *run) presets(ctx context.Context) error {
	presets, err := ReadPresets(ctx, r.api, r.programs, r.Dir, nodefile.Presets())
	if err != nil {
		return err
	}
	r.report("%s", PresetSizes(presets))
	times, err := AllocatorTimes(ctx, presets, r.Rounds)
	if err != nil {
		return err
	}
	r.report("%s", times)
	return nil
}

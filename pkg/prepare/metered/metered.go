// Package metered times what a prepare.Engine waits for: locks, records, CDI specs and steps. It is
// for the agent, which puts it between the engine and what the engine uses. It changes nothing of
// what passes through it.
package metered

import (
	"context"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// Meter is told how long things took; metrics.Metrics is one.
type Meter interface {
	Phase(phase metrics.Phase, took time.Duration)
	Steps(kinds ...string)
	Step(step string, deed metrics.Deed, took time.Duration, err error)
	PreparedKind(kind string, took time.Duration)
}

// Config is the engine's, with everything in it timed.
func Config(c prepare.Config, m Meter) prepare.Config {
	c.Journal = records{c.Journal, m}
	c.Locks = locks{c.Locks, m}
	c.Specs = specs{c.Specs, m}
	c.Base = base{c.Base, m}
	timed := make(map[string]prepare.Executor, len(c.Executors))
	for kind, e := range c.Executors {
		m.Steps(kind)
		timed[kind] = executor{e, kind, m}
	}
	c.Executors = timed
	return c
}

// since tells a phase that began then; it is for defer, with the time of the call.
func since(m Meter, phase metrics.Phase, begin time.Time) { m.Phase(phase, time.Since(begin)) }

type records struct {
	prepare.Journal
	meter Meter
}

func (r records) Save(record *journal.Record) error {
	defer since(r.meter, metrics.PhaseJournalWrite, time.Now())
	return r.Journal.Save(record)
}

func (r records) Delete(claim types.UID) error {
	defer since(r.meter, metrics.PhaseJournalWrite, time.Now())
	return r.Journal.Delete(claim)
}

func (r records) Load(claim types.UID) (*journal.Record, error) {
	defer since(r.meter, metrics.PhaseJournalRead, time.Now())
	return r.Journal.Load(claim)
}

type locks struct {
	prepare.Locks
	meter Meter
}

func phaseOf(key lock.Key) metrics.Phase {
	if strings.HasPrefix(key.Name, "claim_") {
		return metrics.PhaseClaimLock
	}
	return metrics.PhaseGPULock
}

func (l locks) Lock(ctx context.Context, key lock.Key) (func(), error) {
	defer since(l.meter, phaseOf(key), time.Now())
	return l.Locks.Lock(ctx, key)
}

func (l locks) LockAll(ctx context.Context, keys ...lock.Key) (func(), error) {
	defer since(l.meter, metrics.PhaseGPULock, time.Now())
	return l.Locks.LockAll(ctx, keys...)
}

type specs struct {
	prepare.Specs
	meter Meter
}

func (s specs) EnsureClaim(ctx context.Context, claim types.UID, devices []cdi.Device) (bool, error) {
	defer since(s.meter, metrics.PhaseClaimSpec, time.Now())
	return s.Specs.EnsureClaim(ctx, claim, devices)
}

func (s specs) RemoveClaim(claim types.UID) error {
	defer since(s.meter, metrics.PhaseClaimSpec, time.Now())
	return s.Specs.RemoveClaim(claim)
}

type base struct {
	prepare.Base
	meter Meter
}

func (b base) Ensure(ctx context.Context) error {
	defer since(b.meter, metrics.PhaseBaseSpec, time.Now())
	return b.Base.Ensure(ctx)
}

type executor struct {
	prepare.Executor
	kind  string
	meter Meter
}

func (e executor) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	begin := time.Now()
	output, err := e.Executor.Do(ctx, params)
	e.meter.Step(e.kind, metrics.Do, time.Since(begin), err)
	return output, err
}

func (e executor) Undo(ctx context.Context, params, output jsontext.Value) error {
	begin := time.Now()
	err := e.Executor.Undo(ctx, params, output)
	e.meter.Step(e.kind, metrics.Undo, time.Since(begin), err)
	return err
}

// Preparer prepares and unprepares; prepare.Engine is one.
type Preparer interface {
	Prepare(ctx context.Context, plan claims.Plan) ([]prepare.Prepared, error)
	Unprepare(ctx context.Context, claim claims.Ref) error
}

// ByKind times prepares that succeed by the kind of the claim's devices.
func ByKind(p Preparer, m Meter) Preparer { return byKind{p, m} }

type byKind struct {
	Preparer
	meter Meter
}

// mixed is the kind of a claim with devices of several kinds.
const mixed = "mixed"

func (b byKind) Prepare(ctx context.Context, plan claims.Plan) ([]prepare.Prepared, error) {
	begin := time.Now()
	prepared, err := b.Preparer.Prepare(ctx, plan)
	if err == nil && len(plan.Devices) > 0 {
		b.meter.PreparedKind(kindOf(plan), time.Since(begin))
	}
	return prepared, err
}

func kindOf(plan claims.Plan) string {
	kind := plan.Devices[0].Device.Kind()
	for _, d := range plan.Devices {
		if d.Device.Kind() != kind {
			return mixed
		}
	}
	return string(kind)
}

package metered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/prepare/metered"
	"github.com/gpu-dra/driver/pkg/topology"
)

var errFails = errors.New("it fails")

// slow stands for everything that an engine uses: each call takes longer than the one before, and
// fails if told so.
type slow struct {
	calls int
	fails bool
	told  []string
}

func (s *slow) pass() error {
	s.calls++
	time.Sleep(time.Duration(s.calls) * time.Second)
	if s.fails {
		return errFails
	}
	return nil
}

func (s *slow) Phase(phase metrics.Phase, took time.Duration) {
	s.told = append(s.told, fmt.Sprint(phase, " ", took))
}
func (s *slow) Steps(kinds ...string) { s.told = append(s.told, fmt.Sprint("steps ", kinds)) }
func (s *slow) PreparedKind(kind string, took time.Duration) {
	s.told = append(s.told, fmt.Sprint(kind, " ", took))
}

func (s *slow) Step(step string, deed metrics.Deed, took time.Duration, err error) {
	s.told = append(s.told, fmt.Sprint(step, " ", deed, " ", took, " ", err))
}

func (s *slow) Save(*journal.Record) error { return s.pass() }
func (s *slow) Delete(types.UID) error     { return s.pass() }
func (s *slow) Load(uid types.UID) (*journal.Record, error) {
	return &journal.Record{UID: uid}, s.pass()
}
func (s *slow) List() ([]*journal.Record, []journal.Bad, error) { return nil, nil, nil }
func (s *slow) Quarantine(types.UID) (string, error)            { return "", nil }
func (s *slow) Lock(context.Context, lock.Key) (func(), error) {
	return func() { s.told = append(s.told, "unlocked") }, s.pass()
}
func (s *slow) CheckClaim(context.Context, []cdi.Device) error    { return nil }
func (s *slow) ClaimID(device string) string                      { return device }
func (s *slow) BaseID() string                                    { return "base" }
func (s *slow) RemoveClaim(types.UID) error                       { return s.pass() }
func (s *slow) Ensure(context.Context) error                      { return s.pass() }
func (s *slow) Unprepare(context.Context, claims.Ref) error       { return s.pass() }
func (s *slow) Undo(_ context.Context, _, _ jsontext.Value) error { return s.pass() }

func (s *slow) LockAll(ctx context.Context, keys ...lock.Key) (func(), error) {
	return s.Lock(ctx, keys[0])
}

func (s *slow) EnsureClaim(context.Context, types.UID, []cdi.Device) (bool, error) {
	return true, s.pass()
}

func (s *slow) Do(_ context.Context, params jsontext.Value) (jsontext.Value, error) {
	return params, s.pass()
}

func (s *slow) Prepare(_ context.Context, p claims.Plan) ([]prepare.Prepared, error) {
	return make([]prepare.Prepared, len(p.Devices)), s.pass()
}

// everything makes each call once and gives what came of it.
func everything(t *testing.T, c prepare.Config) (outcomes []error) {
	t.Helper()
	ctx := t.Context()
	note := func(err error) { outcomes = append(outcomes, err) }
	unlock, err := c.Locks.Lock(ctx, lock.Key{Name: "claim_1"})
	note(err)
	unlock()
	_, err = c.Locks.Lock(ctx, prepare.GPUKey(inventorytest.T4().GPUs[0].PCI))
	note(err)
	_, err = c.Locks.LockAll(ctx, prepare.GPUKey(inventorytest.T4().GPUs[0].PCI))
	note(err)
	record, err := c.Journal.Load("1")
	note(err)
	note(c.Journal.Save(record))
	note(c.Journal.Delete(record.UID))
	note(c.Base.Ensure(ctx))
	written, err := c.Specs.EnsureClaim(ctx, "1", nil)
	note(err)
	note(c.Specs.RemoveClaim("1"))
	output, err := c.Executors["mps"].Do(ctx, jsontext.Value("1"))
	note(err)
	note(c.Executors["mps"].Undo(ctx, output, nil))
	if record.UID != "1" || !written || string(output) != "1" || c.Specs.BaseID() != "base" {
		t.Errorf("what passes through is changed: %v %v %s", record, written, output)
	}
	return outcomes
}

func TestEverythingIsTimed(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{fails: fails}
			c := metered.Config(prepare.Config{
				Journal: s, Locks: s, Specs: s, Base: s, Executors: map[string]prepare.Executor{"mps": s}, BootID: "boot",
			}, s)
			why := "<nil>"
			if fails {
				why = errFails.Error()
			}
			for i, err := range everything(t, c) {
				if errors.Is(err, errFails) != fails {
					t.Errorf("call %d: %v", i, err)
				}
			}
			want := []string{
				"steps [mps]", "claim_lock 1s", "unlocked", "gpu_lock 2s", "gpu_lock 3s", "journal_read 4s", "journal_write 5s", "journal_write 6s",
				"base_spec 7s", "claim_spec 8s", "claim_spec 9s", "mps do 10s " + why, "mps undo 11s " + why,
			}
			if diff := cmp.Diff(want, s.told); diff != "" || c.BootID != "boot" {
				t.Errorf("fails: %v (-want +got):\n%s", fails, diff)
			}
		})
	}
}

// The phases are those that the metrics have series of from the start.
func TestPhasesAreKnown(t *testing.T) {
	s := &slow{}
	synctest.Test(t, func(t *testing.T) {
		everything(t, metered.Config(prepare.Config{Journal: s, Locks: s, Specs: s, Base: s, Executors: map[string]prepare.Executor{"mps": s}}, s))
	})
	for _, phase := range metrics.Phases() {
		found := false
		for _, told := range s.told {
			var name string
			_, err := fmt.Sscan(told, &name)
			found = found || err == nil && name == string(phase)
		}
		if !found {
			t.Errorf("phase %s has a series and is never told", phase)
		}
	}
}

func TestPreparesByKind(t *testing.T) {
	gpu := device.FromSnapshot(inventorytest.T4(), topology.Assignment{})[0]
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:1]
	part := device.FromPartitionedSnapshot(s, topology.Assignment{}, nil).Devices[0]
	for want, devices := range map[string][]device.Device{"gpu 1s": {gpu, gpu}, "mig 1s": {part}, "mixed 1s": {gpu, part}, "": nil} {
		synctest.Test(t, func(t *testing.T) {
			m := &slow{}
			p := metered.ByKind(m, m)
			plan := claims.Plan{}
			for _, d := range devices {
				plan.Devices = append(plan.Devices, claims.Device{Device: d})
			}
			prepared, err := p.Prepare(t.Context(), plan)
			if err != nil || len(prepared) != len(devices) {
				t.Errorf("%d devices, %v", len(prepared), err)
			}
			m.fails = true
			if _, err := p.Prepare(t.Context(), plan); !errors.Is(err, errFails) {
				t.Errorf("a failure is %v", err)
			}
			if err := p.Unprepare(t.Context(), claims.Ref{}); !errors.Is(err, errFails) {
				t.Errorf("an unprepare that fails is %v", err)
			}
			var wanted []string
			if want != "" {
				wanted = []string{want}
			}
			if diff := cmp.Diff(wanted, m.told); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

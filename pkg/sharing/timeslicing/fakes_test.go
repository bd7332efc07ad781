package timeslicing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/pci"
)

// board is a whole GPU.
type board uint8

func (b board) Name() string      { return fmt.Sprintf("gpu-%d", b) }
func (b board) Kind() device.Kind { return device.KindGPU }
func (b board) Identity() device.Identity {
	return device.Identity{PCI: pci.Address{Bus: uint8(b)}, GPUUUID: b.uuid()}
}
func (b board) Overlaps(o device.Identity) bool { return uint8(b) == o.PCI.Bus }
func (b board) uuid() string                    { return fmt.Sprintf("GPU-%d", b) }
func (b board) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	return resourceapi.Device{Name: b.Name()}, nil
}

// machine is the GPUs and the records of claims.
type machine struct {
	// intervals of GPUs by UUID; a GPU that was never set is not in it.
	intervals map[string]configapi.TimeSlice
	calls     []string
	// fail is what setting ends with, after the deed where late is set.
	fail  error
	late  bool
	known map[types.UID]bool
	dir   string
	boot  string
}

func newMachine(t interface{ TempDir() string }) *machine {
	return &machine{intervals: map[string]configapi.TimeSlice{}, known: map[types.UID]bool{}, dir: t.TempDir(), boot: "boot-1"}
}

func (m *machine) SetTimeSlice(_ context.Context, gpu string, interval configapi.TimeSlice) error {
	m.calls = append(m.calls, gpu+" "+string(interval))
	if m.fail == nil || m.late {
		m.intervals[gpu] = interval
	}
	return m.fail
}

// interval is that of a GPU now.
func (m *machine) interval(b board) configapi.TimeSlice {
	if interval, ok := m.intervals[b.uuid()]; ok {
		return interval
	}
	return configapi.DefaultTimeSlice
}

// executor is that of a process which has just started.
func (m *machine) executor() Executor {
	return Executor{Setter: m, Users: NewUsers(m.dir, m.boot, func(uid types.UID) bool { return m.known[uid] })}
}

func (m *machine) reboot() {
	m.boot += "+"
	m.intervals = map[string]configapi.TimeSlice{}
}

// wish is a claim that asks for an interval of a GPU, or of a share of one.
type wish struct {
	claim    types.UID
	share    types.UID
	gpu      board
	interval configapi.TimeSlice
}

func (w wish) device() claims.Device {
	d := claims.Device{
		Claim:    claims.Ref{Namespace: "team", Name: "claim-" + string(w.claim), UID: w.claim},
		Device:   w.gpu,
		Settings: claims.Settings{TimeSlice: w.interval},
	}
	if w.share != "" {
		d.ShareID = &w.share
	}
	return d
}

// params are those of the claim's one step.
func (w wish) params(t interface{ Fatalf(string, ...any) }) jsontext.Value {
	steps, err := Handler{}.Steps(w.device())
	if err != nil || len(steps) != 1 || steps[0].Kind != Kind {
		t.Fatalf("steps of %+v: %v %v", w, steps, err)
	}
	return steps[0].Params
}

// prepare does the claim's step as the engine does: its record is there before, and after a
// failure the step is undone.
func (m *machine) prepare(t testing.TB, w wish) error {
	m.known[w.claim] = true
	_, err := m.executor().Do(context.Background(), w.params(t))
	if err != nil {
		undone := m.unprepare(t, w)
		return errors.Join(err, undone)
	}
	return nil
}

func (m *machine) unprepare(t testing.TB, w wish) error {
	if err := m.executor().Undo(context.Background(), w.params(t), nil); err != nil {
		return err
	}
	delete(m.known, w.claim)
	return nil
}

// took gives what was executed since the last time.
func (m *machine) took() []string {
	calls := slices.Clone(m.calls)
	m.calls = nil
	return calls
}

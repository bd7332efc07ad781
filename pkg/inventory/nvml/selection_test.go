package nvml_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim"
)

// serving makes a node of the preset mixed, of which not all GPUs are served.
func serving(t *testing.T, s selection.Selection) machine {
	t.Helper()
	return machineOptions(t, "mixed", nvml.Options{CallTimeout: time.Minute, Partitions: true, Selection: s})
}

func exclude(e selection.Entry) selection.Selection {
	return selection.Selection{Exclude: []selection.Entry{e}}
}

// calls counts the calls about a GPU: all, and those that tell who it is.
func (m machine) calls(t *testing.T, gpu int) (all, identity func() int64) {
	t.Helper()
	counting := func(function string) func() int64 {
		count, err := m.CountCalls(gpu, function)
		do(t, err)
		return func() int64 {
			n, err := count()
			do(t, err)
			return n
		}
	}
	var parts []func() int64
	for _, name := range []string{
		"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetPciInfo", "nvmlDeviceGetIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
	} {
		parts = append(parts, counting(name))
	}
	return counting(gpusim.AnyFunction), func() (sum int64) {
		for _, p := range parts {
			sum += p()
		}
		return sum
	}
}

// Of an excluded GPU nothing is asked but who it is, as far as its address does not tell, and that
// once in a session.
func TestExcludedGPUsAreNotTouched(t *testing.T) {
	spec := newMachine(t, "mixed").Spec()
	last := len(spec.GPUs) - 1
	at, uuid := spec.GPUs[last].PCI.String(), spec.GPUs[last].UUID
	for name, c := range map[string]struct {
		selection selection.Selection
		// touched tells that its handle is needed.
		touched bool
	}{
		"by address":      {exclude(selection.Entry{PCIAddresses: []string{at}}), false},
		"by UUID":         {exclude(selection.Entry{UUIDs: []string{uuid}}), true},
		"by product":      {exclude(selection.Entry{Products: []string{"*T4*"}}), true},
		"by what is left": {selection.Selection{Include: []selection.Entry{{Products: []string{"*H100*", "*A100*", "*L40S*"}}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := serving(t, c.selection)
			all, identity := m.calls(t, last)
			var first int64
			for i := range 3 {
				s := m.scan(t)
				if diff := cmp.Diff([]pci.Address{m.addressOf(last)}, s.Excluded); diff != "" || len(s.GPUs) != last || len(s.Unusable) > 0 || len(s.Problems) > 0 {
					t.Fatalf("%d GPUs, unusable %v, problems %v, excluded (-want +got):\n%s", len(s.GPUs), s.Unusable, s.Problems, diff)
				}
				if i == 0 {
					first = all()
				}
			}
			if n := all(); n != identity() || n != first || (n > 0) != c.touched {
				t.Errorf("%d calls, %d in the first look, %d of them about who it is", n, first, identity())
			}
		})
	}
}

// The others are read as if there were no selection.
func TestTheServedAreReadAsEver(t *testing.T) {
	plain := machineOptions(t, "mixed", nvml.Options{CallTimeout: time.Minute, Partitions: true}).scan(t)
	chosen := serving(t, exclude(selection.Entry{Products: []string{"*T4*"}})).scan(t)
	if diff := cmp.Diff(plain.GPUs[:4], chosen.GPUs); diff != "" {
		t.Errorf("GPUs (-plain +chosen):\n%s", diff)
	}
}

// A bus that shows nothing leaves NVML's own enumeration.
func TestSelectionWithoutABus(t *testing.T) {
	m := serving(t, exclude(selection.Entry{Products: []string{"*T4*"}}))
	_, identity := m.calls(t, 4)
	r, err := m.library.Read(t.Context(), nil)
	do(t, err)
	if diff := cmp.Diff([]pci.Address{m.addressOf(4)}, r.Excluded); diff != "" || len(r.Boards) != 4 || identity() == 0 {
		t.Errorf("%d boards, %d calls about the other, excluded (-want +got):\n%s", len(r.Boards), identity(), diff)
	}
}

// One that fails is told of if it is served, and is nobody's business if it is not. What it is
// unknown of belongs to nobody.
func TestSelectionOfGPUsThatFail(t *testing.T) {
	m := serving(t, selection.Selection{Exclude: []selection.Entry{{PCIAddresses: []string{"0000:ca:00.0"}}, {Products: []string{"*L40S*"}}}})
	m.scan(t)
	for gpu := range 5 {
		do(t, m.LoseGPU(gpu))
	}
	do(t, m.HealGPU(0))
	s := m.scan(t)
	if diff := cmp.Diff([]pci.Address{m.addressOf(3), m.addressOf(4)}, s.Excluded); diff != "" || len(s.GPUs) != 1 || len(s.Unusable) != 2 {
		t.Fatalf("%d GPUs, unusable %v, excluded (-want +got):\n%s", len(s.GPUs), s.Unusable, diff)
	}
	for _, u := range s.Unusable {
		if u.Cause != inventory.CauseLost {
			t.Errorf("%+v", u)
		}
	}
	for gpu := range 5 {
		do(t, m.HealGPU(gpu))
	}
	if s = m.scan(t); len(s.GPUs) != 3 || len(s.Unusable) > 0 {
		t.Errorf("healed: %d GPUs, unusable %+v", len(s.GPUs), s.Unusable)
	}
}

// Who a GPU is has to be known once: until then it belongs to nobody, and from then on a call that
// fails takes none away.
func TestSelectionOfGPUsThatDoNotSayWhoTheyAre(t *testing.T) {
	m := serving(t, exclude(selection.Entry{Products: []string{"*T4*"}}))
	nameless := func() {
		t.Helper()
		do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 2, Code: unknown}))
		do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 4, Code: unknown}))
	}
	nameless()
	s := m.scan(t)
	if len(s.GPUs) != 3 || len(s.Unusable) != 2 || s.Unusable[0].PCI != m.addressOf(2) || s.Unusable[0].Cause != inventory.CauseWithheld {
		t.Errorf("%d GPUs, unusable %+v", len(s.GPUs), s.Unusable)
	}
	for i := range 3 {
		if i == 1 {
			nameless()
		}
		if s = m.scan(t); len(s.GPUs) != 4 || len(s.Unusable) > 0 || len(s.Excluded) != 1 {
			t.Errorf("scan %d: %d GPUs, unusable %+v, excluded %v", i, len(s.GPUs), s.Unusable, s.Excluded)
		}
	}
}

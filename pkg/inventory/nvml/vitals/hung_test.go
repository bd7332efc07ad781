package vitals_test

import (
	"errors"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/test/gpusim"
)

// A driver in which the wait for events hangs has one call hang in it, however often it is watched: each that
// hangs takes a thread.
func TestAWaitThatHangs(t *testing.T) {
	m := newMachine(t, "t4-4", 3*time.Second)
	const some = 100
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlEventSetWait", GPU: gpusim.AnyGPU, Hang: true, Count: some}))
	for range 4 {
		err := m.reader.Watch(t.Context(), m.gpus, func(map[inventory.GPUID]error) {}, func(vitals.Event) {})
		if !errors.Is(err, inventory.ErrHung) {
			t.Fatalf("error is %v", err)
		}
	}
	armed, err := m.ArmedFaults()
	do(t, err)
	if hang := some - armed[0].Count; hang != 1 {
		t.Errorf("%d calls hang", hang)
	}
	do(t, m.ClearFaults())
	eventually(t, func() bool {
		loan, giveBack, err := m.library.Lend(t.Context())
		do(t, err)
		defer giveBack()
		return loan.HungAbout("") == nil
	})
	_, events, _ := watching(t, m)
	do(t, m.InjectXID(1, gpusim.XID{Code: 79}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[1], XID: 79, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
}

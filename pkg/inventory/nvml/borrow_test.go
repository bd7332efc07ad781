package nvml_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/test/gpusim"
)

// While a GPU hangs the session cannot end, so who listens for errors of the others keeps it.
func TestNoRecallWhileAGPUHangs(t *testing.T) {
	m := machineWith(t, "t4-4", 100*time.Millisecond)
	lent, giveBack, err := m.library.Lend(t.Context())
	do(t, err)
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetSerial", GPU: sick, Hang: true}))
	m.wantOthers(t, m.scan(t), "hangs: nvmlDeviceGetSerial")
	if err := m.library.Close(t.Context()); !errors.Is(err, inventory.ErrHung) {
		t.Errorf("closed under a running call: %v", err)
	}
	select {
	case <-lent.Recalled:
		t.Error("the session is wanted back, though it cannot end")
	default:
	}
	do(t, m.ClearFaults())
	eventually(t, func() bool { return len(m.scan(t).GPUs) == 4 })
	go func() {
		<-lent.Recalled
		giveBack()
	}()
	// Nothing hangs any more.
	do(t, m.library.Close(context.WithoutCancel(t.Context())))
}

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

// Apart from work that is done apart there is no session: who has one returns it, and who wants one
// waits.
func TestApart(t *testing.T) {
	m := machineWith(t, "t4-4", 0)
	lent, giveBack, err := m.library.Lend(t.Context())
	do(t, err)
	go func() {
		<-lent.Recalled
		giveBack()
	}()
	opened := make(chan error, 1)
	do(t, m.library.Apart(t.Context(), func(ctx context.Context) error {
		go func() {
			_, giveBack, err := m.library.Lend(ctx)
			if err == nil {
				giveBack()
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			t.Errorf("lent meanwhile: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		return nil
	}))
	do(t, <-opened)
	own := errors.New("the work failed")
	if err := m.library.Apart(t.Context(), func(context.Context) error { return own }); !errors.Is(err, own) {
		t.Errorf("%v", err)
	}
	if got := len(m.scan(t).GPUs); got != 4 {
		t.Errorf("%d GPUs", got)
	}
}

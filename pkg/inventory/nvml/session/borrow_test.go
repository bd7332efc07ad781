package session_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/test/gpusim"
)

// While a GPU hangs the session cannot end, so who listens for errors of the others keeps it.
func TestNoRecallWhileAGPUHangs(t *testing.T) {
	m := newMachine(t, 100*time.Millisecond)
	lent, giveBack, err := m.library.Lend(t.Context())
	do(t, err)
	do(t, m.FailCall(gpusim.CallFault{Function: symSerial, GPU: sick, Hang: true}))
	for range 2 {
		// The second time nothing waits: the first call still runs.
		for gpu, err := range second(m.serials(t.Context())) {
			if errors.Is(err, inventory.ErrHung) != (gpu == sick) {
				t.Errorf("GPU %d: %v", gpu, err)
			}
		}
	}
	if err := m.library.Close(t.Context()); !errors.Is(err, inventory.ErrHung) {
		t.Errorf("closed under a running call: %v", err)
	}
	select {
	case <-lent.Recalled:
		t.Error("the session is wanted back, though it cannot end")
	default:
	}
	do(t, m.ClearFaults())
	eventually(t, func() bool { return errors.Join(second(m.serials(t.Context()))...) == nil })
	go func() {
		<-lent.Recalled
		giveBack()
	}()
	// Nothing hangs any more.
	do(t, m.library.Close(context.WithoutCancel(t.Context())))
}

func second[T, U any](_ T, u U) U { return u }

// Apart from work that is done apart there is no session: who has one returns it, and who wants one
// waits.
func TestApart(t *testing.T) {
	m := newMachine(t, 0)
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
	if got, errs := m.serials(t.Context()); len(got) != 4 || errors.Join(errs...) != nil {
		t.Errorf("%v, %v", got, errs)
	}
}

// Who works with the session and is not asked for it back keeps others from closing it.
func TestApartFromABorrower(t *testing.T) {
	m := newMachine(t, 0)
	_, release, err := m.library.Borrow(t.Context())
	do(t, err)
	work := func(context.Context) error { t.Error("it ran beside a borrower"); return nil }
	if err := m.library.Apart(t.Context(), work); err == nil {
		t.Error("no error")
	}
	release()
	ran := false
	do(t, m.library.Apart(t.Context(), func(context.Context) error { ran = true; return nil }))
	if !ran {
		t.Error("it did not run when the session was free")
	}
}

// A call whose caller has gone, such as a wait for events, is waited for; not by who only closes.
func TestApartFromACallLeftBehind(t *testing.T) {
	m := newMachine(t, 0)
	lent, giveBack, err := m.library.Lend(t.Context())
	do(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	if err := lent.Call(ctx, "an event set", symSerial, func(session.API) session.Return { cancel(); <-returned; return 0 }); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	giveBack()
	if err := m.library.Close(t.Context()); err == nil {
		t.Error("closed under a call")
	}
	soon, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	if err := m.library.Apart(soon, func(context.Context) error { t.Error("it ran beside a call"); return nil }); err == nil {
		t.Error("no error")
	}
	time.AfterFunc(20*time.Millisecond, func() { close(returned) })
	ran := false
	do(t, m.library.Apart(t.Context(), func(context.Context) error { ran = true; return nil }))
	if !ran {
		t.Error("it did not run")
	}
}

func TestUseLendsTheLibrary(t *testing.T) {
	m := newMachine(t, 0)
	var uuids []string
	lent := func(api session.API) error {
		d, ret := api.DeviceGetHandleByIndex(0)
		uuid, _ := d.GetUUID()
		uuids = append(uuids, uuid)
		return map[bool]error{false: ret}[ret == 0]
	}
	do(t, m.library.Use(t.Context(), "test", lent))
	do(t, m.library.Close(t.Context()))
	do(t, m.library.Close(t.Context()))
	do(t, m.library.Use(t.Context(), "test", lent))
	if want := slices.Repeat(m.UUIDs()[:1], 2); !slices.Equal(uuids, want) {
		t.Errorf("read %v, want %v", uuids, want)
	}
	refused := errors.New("refused")
	if err := m.library.Use(t.Context(), "test", func(session.API) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.library.Use(ended, "test", lent); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

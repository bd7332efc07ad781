package session_test

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/test/gpusim"
)

// seen are the sessions in which a reading was made.
func (m machine) seen(t *testing.T, read func(turn int, s *session.Session) (bool, error)) (sessions []*session.Session, err error) {
	t.Helper()
	err = m.library.Renewing(t.Context(), func(s *session.Session) (bool, error) {
		sessions = append(sessions, s)
		return read(len(sessions), s)
	})
	return sessions, err
}

func always(again bool, err error) func(int, *session.Session) (bool, error) {
	return func(int, *session.Session) (bool, error) { return again, err }
}

// A reading that wants a new session gets one, once, unless the session is new as it is.
func TestAReadingIsMadeAnew(t *testing.T) {
	m := newMachine(t, 0)
	if got, err := m.seen(t, always(true, nil)); len(got) != 1 || err != nil {
		t.Errorf("%d readings in a new session, %v", len(got), err)
	}
	got, err := m.seen(t, always(true, nil))
	if len(got) != 2 || err != nil || got[0] == got[1] {
		t.Errorf("%d readings, %v", len(got), err)
	}
	if again, err := m.seen(t, always(false, nil)); len(again) != 1 || err != nil || again[0] != got[1] {
		t.Errorf("%d readings, %v; the session was not kept", len(again), err)
	}
}

// While somebody works with the session, what was read in it stands, with its error.
func TestAReadingIsNotMadeAnewUnderABorrower(t *testing.T) {
	m := newMachine(t, 0)
	_, release, err := m.library.Borrow(t.Context())
	do(t, err)
	if got, err := m.seen(t, always(true, nil)); len(got) != 1 || err != nil {
		t.Errorf("%d readings, %v", len(got), err)
	}
	release()
	if got, err := m.seen(t, always(true, nil)); len(got) != 2 || err != nil {
		t.Errorf("%d readings, %v", len(got), err)
	}
}

// After a reload of the kernel module, calls answer as if nothing had been initialised.
func TestASessionThatEnded(t *testing.T) {
	m := newMachine(t, 0)
	_, errs := m.serials(t.Context())
	do(t, errors.Join(errs...))
	do(t, m.FailCall(gpusim.CallFault{Function: symCount, GPU: gpusim.AnyGPU, Code: uint32(nvml.ERROR_UNINITIALIZED), Count: 1}))
	count := func(_ int, s *session.Session) (bool, error) {
		n := session.Ask(s.AboutLibrary(t.Context()), symCount, s.API.DeviceGetCount)
		if n.Err == nil && n.Value != m.GPUCount() {
			t.Errorf("%d GPUs", n.Value)
		}
		return false, n.Err
	}
	if got, err := m.seen(t, count); len(got) != 2 || err != nil {
		t.Errorf("%d readings, %v", len(got), err)
	}
	// Another error is the reading's own.
	own := errors.New("own")
	if got, err := m.seen(t, always(false, own)); len(got) != 1 || !errors.Is(err, own) {
		t.Errorf("%d readings, %v", len(got), err)
	}
	if session.Ended(own, nil) || session.Ended() {
		t.Error("it has not ended")
	}
}

// A GPU that is lost, or hangs, is not asked on; a call that fails is the end of nothing.
func TestTheEndOfAsking(t *testing.T) {
	m := newMachine(t, 100*time.Millisecond)
	s, release, err := m.library.Borrow(t.Context())
	do(t, err)
	defer release()
	called := 0
	answer := func(ret session.Return) func() (int, session.Return) {
		return func() (int, session.Return) { called++; return 7, ret }
	}
	a := s.About(t.Context(), "a GPU")
	if got := session.Ask(a, "nvmlNone", answer(nvml.SUCCESS)); !errors.Is(got.Err, inventory.ErrNotSupported) || called != 0 || a.End != nil {
		t.Errorf("a call that the library lacks: %+v, called %d times", got, called)
	}
	if got := session.Ask(a, "nvmlUnlisted", answer(nvml.SUCCESS)); !errors.Is(got.Err, inventory.ErrNotSupported) || called != 0 {
		t.Errorf("a call that nobody listed: %+v, called %d times", got, called)
	}
	failed := session.Ask(a, symSerial, answer(nvml.ERROR_UNKNOWN))
	if !session.HasCode(failed.Err, nvml.ERROR_UNKNOWN) || session.HasCode(failed.Err, nvml.ERROR_IN_USE) || a.End != nil {
		t.Errorf("%+v, end %v", failed, a.End)
	}
	if got := session.Ask(a, symSerial, answer(nvml.SUCCESS)); got.Value != 7 || got.Err != nil {
		t.Errorf("%+v", got)
	}
	if got := session.Ask(a, symSerial, answer(nvml.ERROR_GPU_IS_LOST)); !errors.Is(got.Err, inventory.ErrLost) || a.End == nil {
		t.Errorf("%+v, end %v", got, a.End)
	}
	before := called
	if got := session.Ask(a, symSerial, answer(nvml.SUCCESS)); !errors.Is(got.Err, inventory.ErrLost) || called != before {
		t.Errorf("a lost GPU was asked on: %+v", got)
	}
	a = s.About(t.Context(), "another")
	a.Rename("that hangs")
	returned := make(chan struct{})
	hung := session.Ask(a, symSerial, func() (int, session.Return) { <-returned; return 0, nvml.SUCCESS })
	var text *session.HungError
	if !errors.As(hung.Err, &text) || text.About != "that hangs" || a.End == nil {
		t.Errorf("%+v, end %v", hung, a.End)
	}
	close(returned)
}

// What NVML's codes mean to a caller.
func TestCodes(t *testing.T) {
	m := newMachine(t, 0)
	s, release, err := m.library.Borrow(t.Context())
	do(t, err)
	defer release()
	for code, want := range map[session.Return]error{
		nvml.ERROR_NOT_SUPPORTED: inventory.ErrNotSupported, nvml.ERROR_FUNCTION_NOT_FOUND: inventory.ErrNotSupported,
		nvml.ERROR_GPU_IS_LOST: inventory.ErrLost, nvml.ERROR_IN_USE: inventory.ErrInUse,
		nvml.ERROR_INSUFFICIENT_RESOURCES: inventory.ErrNoRoom, nvml.ERROR_NOT_FOUND: inventory.ErrNoSuchGPU,
		nvml.ERROR_RESET_REQUIRED: inventory.ErrNeedsReset, nvml.ERROR_DRIVER_NOT_LOADED: inventory.ErrNoDriver,
	} {
		got := s.Call(t.Context(), "a GPU", symSerial, func(session.API) session.Return { return code })
		if !errors.Is(got, want) || !session.HasCode(got, code) {
			t.Errorf("code %d is %v, want %v", code, got, want)
		}
		if ended := code == nvml.ERROR_DRIVER_NOT_LOADED; session.Ended(got) != ended {
			t.Errorf("code %d ends the session: %t", code, !ended)
		}
		transient := !errors.Is(want, inventory.ErrNotSupported) && code != nvml.ERROR_DRIVER_NOT_LOADED
		if errors.Is(session.Passing(got), inventory.ErrTransient) != transient {
			t.Errorf("code %d is transient: %t", code, !transient)
		}
	}
	if got := s.Call(t.Context(), "a GPU", symSerial, func(session.API) session.Return { return nvml.SUCCESS }); got != nil {
		t.Error(got)
	}
}

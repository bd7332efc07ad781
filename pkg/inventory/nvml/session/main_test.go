package session_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/test/gpusim"
)

// The calls that these tests make.
const (
	symCount  = "nvmlDeviceGetCount_v2"
	symHandle = "nvmlDeviceGetHandleByIndex_v2"
	symSerial = "nvmlDeviceGetSerial"
)

// sick is the GPU that the faults hit.
const sick = 1

// machine is a simulated node with four GPUs and the library on it. This process is bound to one
// library for ever, so all machines share one copy of the simulator, which finds its node through
// the environment.
type machine struct {
	*gpusim.Node
	library *session.Library
}

func newMachine(t *testing.T, callTimeout time.Duration) machine {
	t.Helper()
	built, err := gpusim.BuildLibrary(t.Context(), os.Getenv("GPUSIM_CACHE"))
	do(t, err)
	n := gpusim.New(t, "t4-4")
	t.Setenv("GPUSIM_ROOT", n.DriverRoot())
	t.Setenv("GPUSIM_STATE", n.StateFile())
	l := session.New(session.Options{
		Path: built.Library, CallTimeout: callTimeout, Required: []string{symCount}, Calls: []string{symHandle, symSerial, "nvmlNone"},
	})
	t.Cleanup(func() {
		// A call that a test left hanging has to return, or the next node has to wait for it.
		do(t, n.ClearFaults())
		eventually(t, func() bool { return l.Close(context.Background()) == nil })
	})
	return machine{Node: n, library: l}
}

// serial asks a session for the serial number of a GPU, and says what end that made of asking.
func serial(ctx context.Context, s *session.Session, gpu int) (string, error) {
	handle := session.Ask(s.AboutLibrary(ctx), symHandle, func() (nvml.Device, session.Return) { return s.API.DeviceGetHandleByIndex(gpu) })
	if handle.Err != nil {
		return "", handle.Err
	}
	fact := session.Ask(s.About(ctx, string(rune('0'+gpu))), symSerial, handle.Value.GetSerial)
	return fact.Value, fact.Err
}

// serials are those of all GPUs; where one hangs, its error.
func (m machine) serials(ctx context.Context) (out []string, errs []error) {
	errs = make([]error, m.GPUCount())
	failed := m.library.Renewing(ctx, func(s *session.Session) (bool, error) {
		out = nil
		for gpu := range m.GPUCount() {
			text, err := serial(ctx, s, gpu)
			out, errs[gpu] = append(out, text), err
		}
		return false, nil
	})
	if failed != nil {
		errs = []error{failed}
	}
	return out, errs
}

// nothing is a use of the library that does nothing.
func nothing(session.API) error { return nil }

// do fails the test on an error of what it prepares.
func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what another thread does.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Error("waited in vain")
			return
		}
		time.Sleep(time.Millisecond)
	}
}

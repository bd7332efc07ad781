package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// library stands for a Helper whose publication blocks until it is let go.
type library struct {
	block chan struct{}
	calls atomic.Int32
}

func (l *library) PublishResources(context.Context, resourceslice.DriverResources) error {
	l.calls.Add(1)
	<-l.block
	return nil
}

// The library's first publication waits for the API server for ever, whatever its context says.
func TestPublishDoesNotBlockWithTheLibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int32
		lib := &library{block: make(chan struct{})}
		s := NewSlices(nil, lib, "gpu.nvidia.com", "node-0", func() { late.Add(1) })
		begin := time.Now()
		if err := s.Publish(t.Context(), resourceslice.DriverResources{}); !errors.Is(err, errNotSynced) {
			t.Errorf("a publication that blocks: %v, want the reason", err)
		}
		if took := time.Since(begin); took != publishLimit {
			t.Errorf("it took %v", took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Publish(ended, resourceslice.DriverResources{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a publication whose context has ended: %v", err)
		}
		if n := lib.calls.Load(); n != 1 {
			t.Errorf("%d calls wait in the library, want one", n)
		}
		close(lib.block)
		synctest.Wait()
		if late.Load() != 1 {
			t.Errorf("told %d times of the late publication, want once", late.Load())
		}
		if err := s.Publish(t.Context(), resourceslice.DriverResources{}); err != nil {
			t.Errorf("after the library came back: %v", err)
		}
		if late.Load() != 1 {
			t.Error("a publication in time is held to be late")
		}
	})
}

func TestTheGateStopsWritesOfSlicesAlone(t *testing.T) {
	passed := 0
	var gate Gate
	through := gate.wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		passed++
		return nil, nil
	}))
	const slices, claims = "/apis/resource.k8s.io/v1/resourceslices", "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status"
	send := func(method, path string) error {
		_, err := through.RoundTrip(httptest.NewRequestWithContext(t.Context(), method, path, nil)) //nolint:bodyclose // there is none
		return err
	}
	for _, closed := range []bool{false, true} {
		if closed {
			gate.Close()
		}
		for _, r := range []struct {
			method, path string
			stopped      bool
		}{
			{http.MethodGet, slices, false},
			{http.MethodPost, slices, closed},
			{http.MethodPut, slices + "/a", closed},
			{http.MethodDelete, slices + "/a", closed},
			{http.MethodGet, claims, false},
			{http.MethodPut, claims, false},
		} {
			if err := send(r.method, r.path); errors.Is(err, errHandedOver) != r.stopped {
				t.Errorf("%s %s with the gate closed: %t gives %v", r.method, r.path, closed, err)
			}
		}
	}
	if passed != 9 {
		t.Errorf("%d requests passed, want 9", passed)
	}
}

func TestTheGateHoldsForAReason(t *testing.T) {
	var gate Gate
	through := gate.wrap(roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil }))
	write := func() error {
		_, err := through.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/apis/resource.k8s.io/v1/resourceslices/a", nil)) //nolint:bodyclose // there is none
		return err
	}
	why := errors.New("another driver")
	for _, held := range []error{nil, why, nil} {
		gate.Hold(held)
		if err := write(); !errors.Is(err, held) {
			t.Errorf("held for %v: %v", held, err)
		}
	}
	gate.Close()
	gate.Hold(nil)
	if err := write(); !errors.Is(err, errHandedOver) {
		t.Errorf("opened after it was closed: %v", err)
	}
}

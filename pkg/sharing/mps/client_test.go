package mps_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// answering listens as a supervisor and gives one answer a connection; nil breaks it off.
func answering(t *testing.T, layout mps.Layout, answer func(mps.Request) *mps.Response) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", layout.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := mps.Read[mps.Request](conn); err == nil {
				if a := answer(r); a != nil {
					_ = mps.Write(conn, *a)
				}
			}
			_ = conn.Close()
		}
	}()
}

func layout(t *testing.T) mps.Layout {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return mps.Layout(dir)
}

func TestCalls(t *testing.T) {
	l := layout(t)
	seen := make(chan mps.Request, 3)
	answering(t, l, func(r mps.Request) *mps.Response {
		seen <- r
		return &mps.Response{Version: 1, Daemons: []mps.Status{{Name: "gpu", Ready: true}}}
	})
	c := mps.Client{Layout: l, Patience: time.Minute}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	spec := mps.Spec{Devices: []mps.Device{{UUID: "GPU-1"}}}
	if err := errors.Join(c.Ensure(ctx, "gpu", spec), c.Stop(t.Context(), "gpu")); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Ready {
		t.Errorf("%+v, %v", list, err)
	}
	ensure, stop, all := <-seen, <-seen, <-seen
	if ensure.Op != mps.OpEnsure || !ensure.Spec.Equal(spec) || ensure.TimeoutMillis <= 0 || ensure.TimeoutMillis >= time.Hour.Milliseconds() {
		t.Errorf("sent %+v", ensure)
	}
	if stop.Op != mps.OpStop || stop.Name != "gpu" || stop.TimeoutMillis != 0 || all.Op != mps.OpList {
		t.Errorf("sent %+v, %+v", stop, all)
	}
}

func TestRefusals(t *testing.T) {
	l := layout(t)
	answering(t, l, func(mps.Request) *mps.Response { return &mps.Response{Version: 1, Error: "no", Invalid: true} })
	err := mps.Client{Layout: l, Patience: time.Minute}.Stop(t.Context(), "gpu")
	var refused *mps.RefusedError
	if !errors.As(err, &refused) || refused.Message != "no" || !refused.Invalid || refused.Name != "gpu" {
		t.Errorf("error %v", err)
	}
}

// A supervisor that dies in the middle of a call is asked again when it is back.
func TestACallOutlivesASupervisor(t *testing.T) {
	l := layout(t)
	n := 0
	answering(t, l, func(mps.Request) *mps.Response {
		if n++; n < 3 {
			return nil
		}
		return &mps.Response{Version: 1}
	})
	if err := (mps.Client{Layout: l, Patience: time.Minute}).Stop(t.Context(), "gpu"); err != nil || n != 3 {
		t.Errorf("%v after %d calls", err, n)
	}
}

// Without a supervisor a call ends, with its patience as with its context.
func TestNobodyThere(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context
		patience time.Duration
	}{"patience": {t.Context(), time.Millisecond}, "context": {ended, time.Hour}} {
		t.Run(name, func(t *testing.T) {
			l := layout(t)
			_, err := mps.Client{Layout: l, Patience: c.patience}.List(c.ctx)
			var away *mps.AwayError
			if !errors.As(err, &away) || away.Socket != l.Socket() {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A supervisor that hangs keeps nobody longer than the call's context.
func TestAnAnswerThatNeverComes(t *testing.T) {
	l := layout(t)
	ctx, cancel := context.WithCancel(t.Context())
	answering(t, l, func(mps.Request) *mps.Response { cancel(); <-t.Context().Done(); return nil })
	err := mps.Client{Layout: l, Patience: time.Hour}.Stop(ctx, "gpu")
	var away *mps.AwayError
	if !errors.As(err, &away) {
		t.Errorf("error %v", err)
	}
}

// Whether daemons can live is what the lock says, and asking does not take it.
func TestAlive(t *testing.T) {
	l := layout(t)
	want := func(alive bool) {
		t.Helper()
		if got, err := l.Alive(); got != alive || err != nil {
			t.Errorf("alive: %t, %v", got, err)
		}
	}
	want(false)
	f, err := os.Create(filepath.Join(string(l), "life.lock"))
	if err != nil {
		t.Fatal(err)
	}
	want(false)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	want(true)
	want(true)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want(false)
}

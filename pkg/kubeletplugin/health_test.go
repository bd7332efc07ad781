package kubeletplugin

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// devices is a source that says what it is told.
type devices struct {
	mu      sync.Mutex
	message string
	ours    bool
	changes chan struct{}
}

func (d *devices) DeviceHealth() ([]draplugin.DeviceHealth, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []draplugin.DeviceHealth{{DeviceName: "gpu", Message: d.message}}, d.ours
}

func (d *devices) Changes() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes
}

func (d *devices) say(message string, ours bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.message, d.ours = message, ours
	close(d.changes)
	d.changes = make(chan struct{})
}

func TestHealthStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &devices{changes: make(chan struct{}), ours: true}
		reports := make(chan draplugin.DeviceHealthReport)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- (&Plugin{Health: source}).WatchHealthStatus(ctx, reports) }()
		next := func(message string, within time.Duration) {
			t.Helper()
			begin := time.Now()
			r := <-reports
			if took := time.Since(begin); took > within {
				t.Errorf("%q came after %v", message, took)
			}
			if len(r.Devices) != 1 || r.Devices[0].Message != message {
				t.Errorf("%+v, want %q", r, message)
			}
		}
		next("", 0)
		next("", heartbeat)
		source.say("first of a burst", true)
		source.say("ill", true)
		next("ill", lull)
		next("ill", heartbeat)

		// Another instance speaks for the devices: this one is silent.
		source.say("not ours", false)
		select {
		case r := <-reports:
			t.Errorf("%+v", r)
		case <-time.After(3 * heartbeat):
		}
		source.say("ours again", true)
		next("ours again", lull)

		// It ends, also while nobody takes its report.
		source.say("nobody listens", true)
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestWithoutHealth(t *testing.T) {
	if err := (&Plugin{}).WatchHealthStatus(t.Context(), nil); !errors.Is(err, draplugin.ErrHealthNotSupported) {
		t.Errorf("%v, want ErrHealthNotSupported", err)
	}
}

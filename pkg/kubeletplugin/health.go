package kubeletplugin

import (
	"context"
	"time"

	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// HealthSource says how the node's devices are.
type HealthSource interface {
	// DeviceHealth gives all devices, or false while another instance of the plugin speaks for them.
	DeviceHealth() ([]draplugin.DeviceHealth, bool)
	// Changes is closed when that changes.
	Changes() <-chan struct{}
}

const (
	// heartbeat is how often the kubelet is told what has not changed: it forgets after 30 s, and
	// forgets all when any instance of the plugin ends its stream.
	heartbeat = 10 * time.Second
	// lull is how long changes are gathered before the kubelet is told.
	lull = 50 * time.Millisecond
)

// WatchHealthStatus tells the kubelet how devices are, at once when that changes and regularly in
// any case, so that it shows in the status of their pods.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) error {
	if p.Health == nil {
		return draplugin.ErrHealthNotSupported
	}
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		changed := p.Health.Changes()
		if devices, ours := p.Health.DeviceHealth(); ours {
			select {
			case reports <- draplugin.DeviceHealthReport{Devices: devices}:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			continue
		case <-changed:
		}
		timer := time.NewTimer(lull)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

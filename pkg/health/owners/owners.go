// Package owners tells claims, and the pods that use them, that a device of theirs has a fault. It
// is for the agent. It must not know how faults are found.
package owners

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/report"
)

// Records lists the claims that are prepared on this node; journal.Store does.
type Records interface {
	List() ([]*journal.Record, []journal.Bad, error)
}

// Reporter is told of each device of a claim that is ill; report.Reporter is one.
type Reporter interface {
	DeviceSick(ctx context.Context, claim claims.Ref, pods []report.Pod, device, message string)
}

// Teller tells each claim once of each fault.
type Teller struct {
	Records  Records
	Reporter Reporter
	Judge    taints.Judge
	// Devices are all devices of the node, by name.
	Devices func() map[string]device.Device
	// Pods are those that use a claim, as far as that is known now.
	Pods func(ctx context.Context, claim claims.Ref) []report.Pod

	mu   sync.Mutex
	told map[key]string
}

type key struct {
	claim  claims.Ref
	device string
}

// Tell tells what has not been told yet. Claims that are well, or gone, are forgotten.
func (t *Teller) Tell(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	records, _, err := t.Records.List()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Claims cannot be told of faults of their devices")
		return
	}
	devices, now := t.Devices(), map[key]string{}
	for _, r := range records {
		claim := claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
		for _, d := range r.Devices {
			known, ok := devices[d.Name]
			if !ok {
				continue
			}
			v := t.Judge.Of(known)
			if v.Severity() < health.Avoid {
				continue
			}
			k := key{claim, d.Name}
			now[k] = v.Reason()
			if t.told[k] != v.Reason() {
				t.Reporter.DeviceSick(ctx, claim, t.Pods(ctx, claim), d.Name, v.Message())
			}
		}
	}
	t.told = now
}

// Package owners tells claims, and the pods that use them, that a device of theirs has a fault. It
// is for the agent. It must not know how faults are found.
package owners

import (
	"context"
	"errors"
	"sync"
	"time"

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
	// Pods are those that use a claim; none of one that is gone. After an error it is asked again.
	Pods func(ctx context.Context, claim claims.Ref) ([]report.Pod, error)

	begin sync.Once
	// wishes holds at most one wish to tell.
	wishes chan struct{}
	// told is for the one goroutine that tells.
	told map[key]string
}

// again is how long after a failure it is tried again: no other change may come.
const again = 10 * time.Second

type key struct {
	claim  claims.Ref
	device string
}

// Tell has told what has not been told yet, and does not wait for that. Claims that are well, or
// gone, are forgotten. Nothing is told any more once the context of the first call has ended.
func (t *Teller) Tell(ctx context.Context) {
	t.begin.Do(func() {
		t.wishes = make(chan struct{}, 1)
		go t.run(ctx)
	})
	select {
	case t.wishes <- struct{}{}:
	default:
	}
}

func (t *Teller) run(ctx context.Context) {
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wishes:
		case <-retry:
		}
		retry = nil
		if err := t.tell(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Not all claims and pods can be told of faults of their devices; trying again")
			retry = time.After(again)
		}
	}
}

func (t *Teller) tell(ctx context.Context) error {
	records, _, err := t.Records.List()
	if err != nil {
		return err
	}
	var errs []error
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
			now[k] = t.told[k]
			if now[k] == v.Reason() {
				continue
			}
			pods, err := t.Pods(ctx, claim)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			t.Reporter.DeviceSick(ctx, claim, pods, d.Name, v.Message())
			now[k] = v.Reason()
		}
	}
	t.told = now
	return errors.Join(errs...)
}

package kubelet

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// wipe deletes the node's slices of one driver, or of all where driver is empty, and tries again until
// it succeeds or ctx ends.
func (k *Kubelet) wipe(ctx context.Context, driver string) {
	if k.options.Client == nil {
		return
	}
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: k.options.NodeName}
	if driver != "" {
		selector[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	const longest = 5 * time.Minute
	for delay := time.Second; ; delay = min(2*delay, longest) {
		err := k.options.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: selector.String()})
		if err == nil {
			k.options.Log.Info("Wiped slices", "selector", selector.String())
			return
		}
		k.options.Log.Warn("Wiping slices failed", "selector", selector.String(), "err", err)
		if !k.pause(ctx, delay) {
			return
		}
	}
}

// pause waits for d on the kubelet's clock and tells whether ctx is still alive.
func (k *Kubelet) pause(ctx context.Context, d time.Duration) bool {
	timer := k.options.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *driverEntry) cancelWipe() {
	if d.stopWipe != nil {
		d.stopWipe()
		d.stopWipe = nil
	}
}

// count starts the countdown to the wipe where no instance is connected, and ends it where one is. A
// countdown that runs goes on. The caller holds the lock.
func (k *Kubelet) count(driver string) {
	d := k.drivers[driver]
	for _, i := range d.instances {
		if i.info.Connected {
			d.cancelWipe()
			return
		}
	}
	if d.stopWipe != nil || k.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(k.ctx)
	d.stopWipe = stop
	timer := k.options.Clock.NewTimer(AbsenceDelay)
	k.wg.Go(func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			k.wipe(ctx, driver)
		case <-ctx.Done():
		}
	})
}

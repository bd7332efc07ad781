package measure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
)

const (
	// healthPause is more than the plugin's pause between two publications: a fault in a burst waits
	// for that.
	healthPause = 2500 * time.Millisecond
	// burst is a number of errors that come at once.
	burst = 50
)

// Health is how soon others know of a GPU that fell ill, and of one that is well.
type Health struct {
	// Tainted is from the error to the taint in the API server, Told to the report to the kubelet.
	Tainted, Told sample.Series
	// Offered is from the end of the fault to the end of the taint, without a hold-down.
	Offered sample.Series
	// BurstWrites are the writes of slices for each burst of errors of one GPU.
	BurstWrites []int
}

// TimeHealth has GPUs of a machine, on which no plugin runs, fall ill and get well, one after the other.
func TimeHealth(ctx context.Context, api bed.API, m *bed.Machine, rounds int) (Health, error) {
	var h Health
	p, err := m.Start(ctx, bed.Options{User: bed.Starter, Flags: []string{
		"--health-hold-down=0s", "--health-interval=1s", "--mig-devices=on-demand",
	}})
	if err != nil {
		return h, err
	}
	if _, err := p.Published(ctx); err != nil {
		return h, err
	}
	if err := p.Registered(ctx); err != nil {
		return h, err
	}
	for i := range rounds {
		if err := h.round(ctx, m, i%m.Sim().GPUCount()); err != nil {
			return h, err
		}
	}
	for range min(rounds, 10) {
		if err := h.burst(ctx, api, m); err != nil {
			return h, err
		}
	}
	return h, p.Stop(ctx)
}

// round has one GPU fall ill and get well.
func (h *Health) round(ctx context.Context, m *bed.Machine, gpu int) error {
	if err := pause(ctx, healthPause); err != nil {
		return err
	}
	begun := time.Now()
	err := tainted(ctx, m, gpu, true, func() error {
		begun = time.Now()
		if err := m.Sim().SetRecoveryAction(gpu, 1); err != nil {
			return err
		}
		return m.Sim().InjectXID(gpu, gpusim.XID{Code: 95})
	})
	if err != nil {
		return err
	}
	h.Tainted = append(h.Tainted, time.Since(begun))
	id := kubelet.DeviceID{Pool: m.Name, Device: deviceName(m, gpu)}
	var at time.Time
	err = m.Kubelet.WaitForHealth(ctx, bed.Driver, func(all map[kubelet.DeviceID]kubelet.DeviceHealth) bool {
		at = all[id].At
		return all[id].Health == kubelet.Unhealthy
	})
	if err != nil {
		return err
	}
	h.Told = append(h.Told, at.Sub(begun))
	if err := pause(ctx, healthPause); err != nil {
		return err
	}
	err = tainted(ctx, m, gpu, false, func() error {
		begun = time.Now()
		return m.Sim().SetRecoveryAction(gpu, 0)
	})
	h.Offered = append(h.Offered, time.Since(begun))
	return err
}

// burst has one GPU report many errors and counts the writes.
func (h *Health) burst(ctx context.Context, api bed.API, m *bed.Machine) error {
	if err := pause(ctx, healthPause); err != nil {
		return err
	}
	before, err := api.Requests(bed.Starter)
	if err != nil {
		return err
	}
	err = tainted(ctx, m, 0, true, func() error {
		if err := m.Sim().SetRecoveryAction(0, 1); err != nil {
			return err
		}
		for i := range burst {
			if err := m.Sim().InjectXID(0, gpusim.XID{Code: uint64(63 + i%2)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := pause(ctx, healthPause); err != nil {
		return err
	}
	after, err := api.Requests(bed.Starter)
	if err != nil {
		return err
	}
	writes := 0
	for _, r := range after[len(before):] {
		if r.Write() && r.Resource == "resourceslices" {
			writes++
		}
	}
	h.BurstWrites = append(h.BurstWrites, writes)
	return tainted(ctx, m, 0, false, func() error { return m.Sim().SetRecoveryAction(0, 0) })
}

func deviceName(m *bed.Machine, gpu int) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(m.Sim().Spec().GPUs[gpu].PCI.String())
}

// tainted does something and waits until a GPU has, or has not any more, a taint that keeps pods away.
func tainted(ctx context.Context, m *bed.Machine, gpu int, want bool, do func() error) error {
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	name := deviceName(m, gpu)
	all := m.Client.ResourceV1().ResourceSlices()
	options := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + m.Name}
	list, err := all.List(ctx, options)
	if err != nil {
		return fmt.Errorf("slices of %s: %w", m.Name, err)
	}
	options.ResourceVersion = list.ResourceVersion
	watch, err := all.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch slices of %s: %w", m.Name, err)
	}
	defer watch.Stop()
	if err := do(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("device %s: tainted is not %t: %w", name, want, context.Cause(ctx))
		case e, open := <-watch.ResultChan():
			slice, ok := e.Object.(*resourceapi.ResourceSlice)
			if !open || !ok {
				return fmt.Errorf("watch of slices ended: %+v", e)
			}
			if has, found := avoided(slice, name); found && has == want {
				return nil
			}
		}
	}
}

// avoided tells whether a slice has a device, and whether new pods avoid that.
func avoided(slice *resourceapi.ResourceSlice, name string) (has, found bool) {
	for _, d := range slice.Spec.Devices {
		if d.Name == name {
			return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone }), true
		}
	}
	return false, false
}

// String is the result as Markdown.
func (h Health) String() string {
	t := sample.NewTable("from … to …", "p50, ms", "p99, ms", "times")
	for _, row := range []struct {
		what string
		took sample.Series
	}{
		{"the error to the taint in the API server", h.Tainted},
		{"the error to the report to the kubelet", h.Told},
		{"the end of the fault, without a hold-down, to the end of the taint (GPUs are read every second)", h.Offered},
	} {
		t.Add(row.what, sample.Milliseconds(row.took.Median()), sample.Milliseconds(row.took.Percentile(99)), strconv.Itoa(len(row.took)))
	}
	var writes []string
	for _, n := range h.BurstWrites {
		writes = append(writes, strconv.Itoa(n))
	}
	return fmt.Sprintf("### Health\n\n%s\nWrites of slices for %d errors of one GPU that came at once: %s.\n", t, burst, strings.Join(writes, ", "))
}

// health measures with a plugin of its own.
func (r *run) health(ctx context.Context) error {
	m, err := r.machine(ctx, r.api)
	if err != nil {
		return err
	}
	defer m.Close()
	const perRound = 4
	h, err := TimeHealth(ctx, r.api, m, r.Rounds*perRound)
	if err != nil {
		return err
	}
	r.report("%s", h)
	return nil
}

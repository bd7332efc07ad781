// Package partition measures what partitions of GPUs cost: a prepare beside the calls of the GPU
// driver that make them, claims on different GPUs at once, and the size of what a node publishes.
// It runs on a bench's bed and does not know how the plugin works.
package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
)

// Flag has the plugin cut GPUs on demand.
const Flag = "--mig-devices=on-demand"

// creations are the calls of the GPU driver that make a partition.
func creations() []string {
	return []string{"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"}
}

// Times are prepares of one partition at one latency of the calls that make it.
type Times struct {
	// Latency of each call that makes something; Calls is their number for one partition.
	Latency time.Duration
	Calls   int
	// One prepares a claim on one GPU, Two claims on two GPUs at once.
	One, Two sample.Series
}

// Measure prepares a claim of a partition on each of the first two GPUs, alone and at once.
func Measure(ctx context.Context, m *bed.Machine, latency time.Duration, runs int) (Times, error) {
	t := Times{Latency: latency, Calls: len(creations())}
	slices, err := devices(ctx, m)
	if err != nil {
		return t, err
	}
	for run := range runs {
		var claims []kubelet.Claim
		for gpu := range 2 {
			claim, err := m.Allocated(ctx, fmt.Sprintf("%s-part-%d-%d-%d", m.Name, latency.Milliseconds(), run, gpu), slices[gpu], false)
			if err != nil {
				return t, err
			}
			claims = append(claims, claim)
		}
		for _, set := range [][]kubelet.Claim{claims[:1], claims} {
			took, err := once(ctx, m, latency, set)
			if err != nil {
				return t, err
			}
			if len(set) == 1 {
				t.One = append(t.One, took)
			} else {
				t.Two = append(t.Two, took)
			}
		}
	}
	return t, nil
}

// once prepares claims in one call and unprepares them again.
func once(ctx context.Context, m *bed.Machine, latency time.Duration, claims []kubelet.Claim) (time.Duration, error) {
	for _, function := range creations() {
		if latency == 0 {
			break
		}
		fault := gpusim.CallFault{Function: function, GPU: gpusim.AnyGPU, Delay: latency, Count: gpusim.Forever}
		if err := m.Sim().FailCall(fault); err != nil {
			return 0, err
		}
	}
	begun := time.Now()
	err := m.Prepare(ctx, claims...)
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if err := m.Unprepare(ctx, claims...); err != nil {
		return 0, err
	}
	return took, m.Sim().ClearFaults()
}

// devices gives the first partition of each GPU.
func devices(ctx context.Context, m *bed.Machine) ([]string, error) {
	all, err := m.Slices(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	seen := map[string]bool{}
	for i := range all {
		for _, d := range all[i].Spec.Devices {
			parent := d.Attributes["parentUUID"].StringValue
			if parent == nil || seen[*parent] {
				continue
			}
			seen[*parent] = true
			names = append(names, d.Name)
		}
	}
	if len(names) < 2 {
		return nil, fmt.Errorf("%d GPUs of %s have partitions, two are needed", len(names), m.Name)
	}
	return names, nil
}

// Table shows times as Markdown.
func Table(all []Times) string {
	t := sample.NewTable("each of the calls that make it takes, ms", "prepare, ms", "beside those calls, ms", "two GPUs at once, ms", "ratio")
	for _, x := range all {
		one, two := x.One.Median(), x.Two.Median()
		beside := one - time.Duration(x.Calls)*x.Latency
		t.Add(fmt.Sprint(x.Latency.Milliseconds()), sample.Milliseconds(one), sample.Milliseconds(beside), sample.Milliseconds(two), sample.Times(float64(two)/float64(one)))
	}
	return "### Prepare of a partition\n\n" + t.String()
}

// Size is what a node publishes.
type Size struct {
	Devices, Slices, JSON int
}

// Weigh counts slices without managed fields.
func Weigh(slices []resourceapi.ResourceSlice) (Size, error) {
	s := Size{Slices: len(slices)}
	for i := range slices {
		object := slices[i].DeepCopy()
		object.ManagedFields = nil
		text, err := json.Marshal(object)
		if err != nil {
			return s, fmt.Errorf("size of a slice: %w", err)
		}
		s.Devices += len(object.Spec.Devices)
		s.JSON += len(text)
	}
	return s, nil
}

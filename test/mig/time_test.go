package mig_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
)

// A restart beside live partitions writes no slice, and the answers are those from before.
func TestRestart(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.start()
	claim, _ := b.wants("one", "1g.10gb", 2)
	answer, before := b.prepare(claim), b.published()
	b.API.ResetRequests()
	p.Kill()
	p = b.start()
	if diff := cmp.Diff(answer, b.prepare(claim)); diff != "" {
		t.Errorf("answer (-before +after):\n%s", diff)
	}
	b.looked(p, 4)
	if n := b.writes(); n != 0 {
		t.Errorf("%d changes of slices: %s", n, cmp.Diff(before, b.published()))
	}
	if diff := cmp.Diff([]string{"1g.10gb:5", "1g.10gb:6"}, b.partitions(0)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	b.unprepare(claim)
	b.untouched()
}

// A claim does not wait for the partition of another on another GPU, nor does a look at the node.
func TestGPUsDoNotWaitForEachOther(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlDeviceCreateGpuInstanceWithPlacement", GPU: 0, Hang: true}))
	slow, quick := b.gets("slow", b.Device(0)+"-mig-1g-10gb-6"), b.gets("quick", b.Device(1)+"-mig-1g-10gb-6")
	ended := make(chan error, 1)
	go func() {
		_, err := b.Prepare(slow)
		ended <- err
	}()
	b.Eventually("the slow one is under way", func() error {
		if !b.mode(0) {
			return fmt.Errorf("the mode is off")
		}
		return nil
	})
	b.prepare(quick)
	select {
	case err := <-ended:
		t.Fatalf("the slow one has ended: %v", err)
	default:
	}
	must(t, b.Node.ClearFaults())
	must(t, <-ended)
	b.unprepare(slow)
	b.unprepare(quick)
	b.untouched()
}

// What a claim costs beside the calls of the driver that make its partition.
func TestOverhead(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	const latency = 500 * time.Millisecond
	slow := []string{"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"}
	for _, wait := range []time.Duration{0, latency} {
		var took []time.Duration
		for n := range 5 {
			if wait > 0 {
				for _, function := range slow {
					must(t, b.Node.FailCall(gpusim.CallFault{Function: function, GPU: gpusim.AnyGPU, Delay: wait, Count: 1}))
				}
			}
			claim := b.gets(fmt.Sprintf("claim-%d-%d", n, wait), b.Device(0)+"-mig-1g-10gb-6")
			begin := time.Now()
			b.prepare(claim)
			took = append(took, time.Since(begin)-time.Duration(len(slow))*wait)
			b.unprepare(claim)
			must(t, b.Node.ClearFaults())
		}
		slices.Sort(took)
		t.Logf("prepare beside calls of %s: median %s, longest %s", wait, took[2], took[4])
	}
	b.untouched()
}

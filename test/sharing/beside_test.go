package sharing_test

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/process"
)

// observing makes of a claim one with admin access.
func observing(c *resourceapi.ResourceClaim) {
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].AdminAccess = new(true)
	}
}

// tainted waits until exactly these GPUs are published with a taint.
func (b *bed) tainted(gpus ...int) {
	b.T.Helper()
	want := map[string]bool{}
	for _, i := range gpus {
		want[b.Device(i)] = true
	}
	b.Eventually(fmt.Sprintf("taints of %v", gpus), func() error {
		list, err := b.Client.ResourceV1().ResourceSlices().List(b.T.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				if has := len(d.Taints) > 0; has != want[d.Name] {
					return fmt.Errorf("%s has the taints %v", d.Name, d.Taints)
				}
			}
		}
		return nil
	})
}

// Claims with admin access change nothing of how a GPU is shared, neither when they come nor when
// they go.
func TestObserversTouchNothing(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	b.start(process.Flag("shared-devices", `[{"devices": {"indices": [3]}, "enforcement": "mps", "replicas": 2}]`))
	byMPS, slices := b.Allocated("mps", []int{0}, mps(25, "1Gi")), b.Allocated("slices", []int{1}, timeSlicing("Long"))
	part, _ := b.share("team", "part")
	client := b.tenant(b.prepare(byMPS))
	client.want("thread_percentage=25.0")
	b.prepare(slices)
	b.prepare(part)
	as := func() {
		t.Helper()
		b.wantSharing(0, gpusim.Sharing{ComputeMode: exclusive})
		b.wantSharing(1, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
		b.wantSharing(2, gpusim.Sharing{})
		b.wantSharing(3, gpusim.Sharing{ComputeMode: exclusive})
	}
	as()
	observer := b.Allocated("observer", []int{0, 1, 2, 3}, observing)
	b.prepare(observer)
	as()
	b.unprepare(observer)
	as()
	client.ask("allocate 100", "total=100")
	client.end()
	b.unprepare(byMPS, slices, part)
	b.untouched()
}

// A GPU that is lost while it is shared is tainted like any other, keeps no pod from its end, and
// is as it was before when it is back; who shares another GPU notices nothing.
func TestLostWhileShared(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	b.start(process.Flag("rescan-interval", "1s"), process.Flag("health-hold-down", "1s"), process.Flag("reconcile-interval", "1s"))
	lost, well := b.Allocated("lost", []int{1}, mps(25, "1Gi")), b.Allocated("well", []int{0}, mps(30, "1Gi"))
	b.prepare(lost)
	client := b.tenant(b.prepare(well))
	client.want("thread_percentage=30.0")
	must(t, b.Node.LoseGPU(1))
	b.tainted(1)
	b.unprepare(lost)
	client.ask("allocate 100", "total=100")
	must(t, b.Node.HealGPU(1))
	b.tainted()
	b.Eventually("the compute mode is put back", func() error {
		got, err := b.Node.Sharing(1)
		if err == nil && got != (gpusim.Sharing{}) {
			err = fmt.Errorf("GPU 1 is shared as %+v", got)
		}
		return err
	})
	after := b.Allocated("after", []int{1})
	plain := b.tenant(b.prepare(after))
	plain.want("compute_mode=0", "mps=none")
	plain.end()
	client.end()
	b.unprepare(after, well)
	b.untouched()
}

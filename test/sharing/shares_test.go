package sharing_test

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// sharedClass is the DeviceClass of devices that are offered in shares.
const sharedClass = "shared.gpu.nvidia.com"

// share makes a claim for one share of a namespace and has the scheduler allocate it. It gives
// the device that it is of.
func (b *bed) share(namespace, name string) (kubelet.Claim, string) {
	b.T.Helper()
	must(b.T, b.API.Put(
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: sharedClass}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
				"device.driver == %q && device.allowMultipleAllocations", process.Driver)}}},
		}},
		&resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: process.Request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: sharedClass},
			}}}},
		},
	))
	allocated, err := b.Scheduler.Allocate(b.T.Context(), namespace, name, process.NodeName,
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)})
	must(b.T, err)
	results := allocated.Status.Allocation.Devices.Results
	if len(results) != 1 || results[0].ShareID == nil {
		b.T.Fatalf("claim %s was allocated %+v, want a share", name, results)
	}
	return kubelet.ClaimOf(allocated), results[0].Device
}

// release takes the allocation from a claim that share allocated.
func (b *bed) release(c kubelet.Claim) {
	b.T.Helper()
	_, err := b.Scheduler.Release(b.T.Context(), c.Namespace, c.Name, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: c.Name, UID: types.UID(c.Name)})
	must(b.T, err)
}

// Shares of a GPU go to claims of several namespaces until it is full; then the next GPU is used.
// Each is kept to its part inside its container.
func TestReplicas(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	b.start(process.Flag("shared-devices", `[{"devices": {"indices": [1, 2]}, "enforcement": "mps", "replicas": 2, "threadPercentage": 40}]`))
	free := b.Node.Spec().GPUs[1].Board.MemoryMiB / 2
	var list []kubelet.Claim
	var tenants []*tenant
	for i, want := range []int{1, 1, 2} {
		claim, device := b.share([]string{"one", "two", "three"}[i], "share")
		if device != b.Device(want) {
			t.Errorf("share %d is of %s, want %s", i, device, b.Device(want))
		}
		c := b.tenant(b.prepare(claim))
		c.want("uuid="+b.Node.UUIDs()[want], "compute_mode=3", "thread_percentage=40.0", fmt.Sprintf("pinned_limit=%d", free))
		list, tenants = append(list, claim), append(tenants, c)
	}
	tenants[0].ask(fmt.Sprintf("allocate %d", free+1), "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit")
	tenants[0].ask("allocate 1000", "total=1000")
	tenants[0].end()
	b.unprepare(list[0])
	tenants[1].ask("allocate 1000", "total=1000")
	b.wantSharing(1, gpusim.Sharing{ComputeMode: exclusive})
	for i, c := range tenants[1:] {
		c.end()
		b.unprepare(list[i+1])
	}
	b.untouched()
}

// Shares that time slicing makes are not enforced, and nothing is set for them.
func TestCooperativeShares(t *testing.T) {
	b := newBed(t, "t4-4")
	b.start(process.Flag("device-plugin-config", `{"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}`))
	var list []kubelet.Claim
	for i := range 5 {
		claim, device := b.share("team", fmt.Sprintf("share-%d", i))
		if want := b.Device(i / 4); device != want {
			t.Errorf("share %d is of %s, want %s", i, device, want)
		}
		c := b.tenant(b.prepare(claim))
		c.want("compute_mode=0", "mps=none")
		c.end()
		list = append(list, claim)
	}
	b.wantSharing(0, gpusim.Sharing{})
	b.unprepare(list...)
	b.untouched()
}

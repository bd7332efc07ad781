package process_test

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/process"
)

// share makes of each result a share of its device, with so much of its memory.
func share(memory string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		for i := range c.Status.Allocation.Devices.Results {
			id := uuid.NewUUID()
			r := &c.Status.Allocation.Devices.Results[i]
			r.ShareID = &id
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
		}
	}
}

// interval asks for a time slice.
func interval(name string) func(*resourceapi.ResourceClaim) {
	return config(process.Driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig",
		"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"`+name+`"}}}`)
}

// sliced wants a GPU to have that time slice.
func sliced(t testing.TB, b *process.Bed, gpu, want int) {
	t.Helper()
	have, err := b.Node.Sharing(gpu)
	must(t, err)
	if have.TimeSlice != want {
		t.Errorf("GPU %d has time slice %d, want %d", gpu, have.TimeSlice, want)
	}
}

// The first claim on a GPU sets the interval, the last puts it back, whoever is killed or
// rebooted in between; a claim with another wish is refused with the name of one that is there.
func TestTimeSlices(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	declared := process.Flag("shared-devices", `[{"enforcement":"none","replicas":4,"devices":{"indices":[0]}}]`)
	p := b.Start(declared)
	whole := b.Allocated("whole", []int{1}, interval("Short"))
	first, second := b.Allocated("first", []int{0}, share("0"), interval("Long")), b.Allocated("second", []int{0}, share("0"), interval("Long"))
	plain := b.Allocated("plain", []int{2})
	prepare(t, b, whole, 1)
	prepare(t, b, first, 0)
	prepare(t, b, second, 0)
	prepare(t, b, plain, 2)
	sliced(t, b, 0, gpusim.TimeSliceLong)
	sliced(t, b, 1, gpusim.TimeSliceShort)
	sliced(t, b, 2, gpusim.TimeSliceDefault)
	refused(t, b, b.Allocated("other", []int{0}, share("0"), interval("Medium")), "interval", `"Medium"`, `"Long"`, "for claim default/")
	// One that asks for nothing takes what there is.
	quiet := b.Allocated("quiet", []int{0}, share("0"))
	prepare(t, b, quiet, 0)

	p.Kill()
	b.Start(declared)
	unprepare(t, b, first)
	sliced(t, b, 0, gpusim.TimeSliceLong)
	unprepare(t, b, second)
	sliced(t, b, 0, gpusim.TimeSliceDefault)
	unprepare(t, b, whole, plain, quiet)
	sliced(t, b, 1, gpusim.TimeSliceDefault)
	clean(t, b)
}

// A board without time slices refuses the wish, and never keeps a claim from its end.
func TestTimeSlicesNotSupported(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvidia-smi:compute-policy", GPU: gpusim.AnyGPU, Code: 3, Count: gpusim.Forever}))
	refused(t, b, b.Allocated("wish", []int{0}, interval("Long")), "does not support", "time slice")
	must(t, b.Node.ClearFaults())
	claim := b.Allocated("claim", []int{0}, interval("Long"))
	prepare(t, b, claim, 0)
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvidia-smi:compute-policy", GPU: gpusim.AnyGPU, Code: 3, Count: gpusim.Forever}))
	unprepare(t, b, claim)
	clean(t, b)
}

// Declared devices are published in shares, each prepared for its own claim; containers find
// their limit; the whole device is kept away while there is a share, and shares from a whole one.
func TestShares(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start(process.Flag("shared-devices", `[{"enforcement":"cooperative","devices":{"indices":[0,1]}}]`), process.Flag("holder-wait", "0s")).WaitReady()
	for i, d := range devices(t, b, 4) {
		if shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations; shared != (i < 2) || text(d, "sharingEnforcement") == "cooperative" != shared {
			t.Errorf("%s: shared %t, enforcement %q", d.Name, shared, text(d, "sharingEnforcement"))
		}
	}
	first, second := b.Allocated("first", []int{0}, share("5Gi")), b.Allocated("second", []int{0, 1}, share("2Gi"))
	ids := map[types.UID]bool{}
	for _, d := range slices.Concat(prepare(t, b, first, 0), prepare(t, b, second, 0, 1)) {
		ids[d.ShareID] = true
	}
	if len(ids) != 3 || ids[""] {
		t.Errorf("the answers have shares %v", ids)
	}
	for claim, limit := range map[string]string{string(first.UID): "NVIDIA_GPU_MEMORY_LIMIT=5120", string(second.UID): "NVIDIA_GPU_MEMORY_LIMIT=2048"} {
		c := first
		if claim == string(second.UID) {
			c = second
		}
		spec, err := b.Spec(c)
		must(t, err)
		for _, d := range spec.Devices {
			if !slices.Contains(d.ContainerEdits.Env, limit) {
				t.Errorf("device %s has %v, not %s", d.Name, d.ContainerEdits.Env, limit)
			}
		}
	}
	refused(t, b, b.Allocated("whole", []int{0}), "device "+b.Device(0)+" is still prepared for claim default/")
	unprepare(t, b, first, second)
	whole := b.Allocated("again", []int{0})
	prepare(t, b, whole, 0)
	refused(t, b, b.Allocated("late", []int{0}, share("1Gi")), "is still prepared for claim default/again")
	unprepare(t, b, whole)
	clean(t, b)
}

// The file of the device plugin makes shares of one device, and no copies of it.
func TestDevicePluginConfig(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start(process.Flag("device-plugin-config", "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, devices: 2}]}}}")).WaitReady()
	for i, d := range devices(t, b, 4) {
		shares, shared := d.Capacity["shares"]
		if shared != (i < 2) || shared && shares.Value.Value() != 4 {
			t.Errorf("%s: shares %v", d.Name, shares.Value)
		}
	}
}

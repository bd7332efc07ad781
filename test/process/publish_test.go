package process_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/process"
)

// The published pool is the hardware: every GPU by its address with its UUID and memory, and in
// NVLink domains of the sizes that the machine is built of.
func TestPublishesTheHardware(t *testing.T) {
	domains := map[string][]int{
		"hgx-h100-8": {8}, "two-islands": {4, 4}, "hgx-h100-16": {8, 8}, "dgx1-v100": {4, 4},
		"a100-pcie-8": {2, 2, 2, 2}, "l40s-8": nil, "t4-4": nil, "gb200-nvl72": {4}, "rtx-pro-6000-8": nil,
	}
	for preset, sizes := range domains {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			b := process.New(t, preset)
			p := b.Start()
			p.WaitReady()
			devices := pool(t, b)
			var wanted []string
			for i := range b.Node.GPUCount() {
				wanted = append(wanted, b.Device(i))
			}
			if diff := cmp.Diff(wanted, slices.Sorted(slices.Values(names(devices)))); diff != "" {
				t.Fatal(diff)
			}
			members := map[string]int{}
			for _, d := range devices {
				board := b.Node.Spec().GPUs[slices.Index(wanted, d.Name)]
				memory := d.Capacity["memory"].Value
				if text(d, "uuid") != board.UUID || memory.Value() != int64(board.Board.MemoryMiB)<<20 {
					t.Errorf("%s has UUID %s and memory %s; the board has %s and %d MiB",
						d.Name, text(d, "uuid"), memory.String(), board.UUID, board.Board.MemoryMiB)
				}
				if domain := text(d, "nvlinkDomain"); domain != "" {
					members[domain]++
				}
			}
			var found []int
			for _, n := range members {
				found = append(found, n)
			}
			slices.Sort(found)
			if diff := cmp.Diff(sizes, found); diff != "" {
				t.Errorf("sizes of NVLink domains: %s", diff)
			}
			metric(t, b, p, fmt.Sprintf(`gpu_dra_devices{type="gpu"} %d`, len(wanted)))
		})
	}
}

// largeNode has as many GPUs as a simulated node can.
func largeNode(t *testing.T, gpus int) *gpusim.Node {
	file, err := nodefile.Preset("l40s-8")
	must(t, err)
	file.Name, file.GPUs = "large", nil
	for i := range gpus {
		file.GPUs = append(file.GPUs, nodefile.GPU{PCI: fmt.Sprintf("0000:%02x:00.0", i+1), Root: "pci0000:00"})
	}
	return gpusim.NewFromFile(t, file)
}

func TestLargeClaims(t *testing.T) {
	t.Parallel()
	b := process.NewOn(t, largeNode(t, 64))
	p := b.Start()
	p.WaitReady()
	if n := len(pool(t, b)); n != 64 {
		t.Fatalf("%d devices are published", n)
	}
	low, high := b.Allocated("low", all(32)), b.Allocated("high", all(64)[32:])
	prepare(t, b, low, all(32)...)
	prepare(t, b, high, all(64)[32:]...)
	unprepare(t, b, low, high)
	clean(t, b)
}

// A restart writes no slice, and the devices keep their order. The kubelet that starts anew
// deletes them all, and they are back within seconds.
func TestRestarts(t *testing.T) {
	t.Parallel()
	b := process.New(t, "two-islands")
	p := b.Start()
	p.WaitReady()
	before := pool(t, b)
	for _, end := range []func(){p.Terminate, func() { p.Kill() }} {
		end()
		b.API.ResetRequests()
		p = b.Start()
		p.WaitReady()
		looked(t, b, 4)
		if writes := sliceWrites(b); len(writes) > 0 {
			t.Errorf("a restart wrote slices: %+v", writes)
		}
		if diff := cmp.Diff(before, pool(t, b)); diff != "" {
			t.Error(diff)
		}
	}

	claim := b.Allocated("kept", []int{5})
	answer := prepare(t, b, claim, 5)
	b.API.ResetRequests()
	state := b.Kubelet.Stop()
	begin := time.Now()
	b.StartKubelet(state)
	b.Eventually("the kubelet's wipe", func() error {
		if len(b.API.Requests(kubeapi.Match{User: "test", Verbs: []string{"deletecollection"}})) == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	b.Eventually("slices after the wipe", func() error {
		if n := len(pool(t, b)); n != len(before) {
			return fmt.Errorf("%d devices", n)
		}
		return nil
	})
	t.Logf("slices were back %s after the start of the kubelet", time.Since(begin))
	if diff := cmp.Diff(names(before), names(pool(t, b))); diff != "" {
		t.Error(diff)
	}
	p.WaitRegistered()
	if diff := cmp.Diff(answer, prepare(t, b, claim, 5)); diff != "" {
		t.Errorf("another answer after the restart: %s", diff)
	}
	unprepare(t, b, claim)
	clean(t, b)
}

// The scheduler's own allocator puts four GPUs of one NVLink domain on the island that is whole.
func TestFourInOneDomain(t *testing.T) {
	t.Parallel()
	b := process.New(t, "two-islands")
	b.Start().WaitReady()
	domain := resourceapi.FullyQualifiedName(process.Driver + "/nvlinkDomain")
	request := func(name string, count int64, constraints ...resourceapi.DeviceConstraint) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{}
		c.Namespace, c.Name = "default", name
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: process.Request, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: process.Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		}}}
		c.Spec.Devices.Constraints = constraints
		return c
	}
	together := resourceapi.DeviceConstraint{MatchAttribute: &domain}
	two, four := schedule(t, b, request("two", 2, together)), schedule(t, b, request("four", 4, together))
	prepare(t, b, two, 0, 1)
	prepare(t, b, four, 4, 5, 6, 7)
	unprepare(t, b, two, four)
	clean(t, b)
}

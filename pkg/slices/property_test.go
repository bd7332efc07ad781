package slices_test

import (
	"fmt"
	stdslices "slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
)

// drawDevices draws GPUs of one or many devices, some of them with what the API refuses.
func drawDevices(t *rapid.T) (all []device.Device, bad int) {
	for gpu := range rapid.IntRange(0, 12).Draw(t, "gpus") {
		for i := range rapid.SampledFrom([]int{1, 1, 2, 19, 70}).Draw(t, "devices") {
			d := board{gpu: pci.Address{Bus: uint8(gpu)}, name: fmt.Sprintf("gpu-%02d-%02d", gpu, i)}
			if rapid.IntRange(0, 15).Draw(t, "bad") == 0 {
				d.name = strings.ToUpper(d.name)
				bad++
			}
			all = append(all, d)
		}
	}
	return all, bad
}

func TestRandomPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices, bad := drawDevices(t)
		r := slices.Build(slices.Input{Devices: devices})
		if r.Count() != len(devices)-bad || len(r.Omissions) != bad {
			t.Fatalf("%d of %d devices with %d bad ones, omissions %v", r.Count(), len(devices), bad, r.Omissions)
		}
		perGPU, homes := map[string]int{}, map[string]map[int]bool{}
		for i, s := range r.Slices {
			if len(s.Devices) > slices.MaxDevices || len(s.Devices) == 0 && len(r.Slices) > 1 {
				t.Fatalf("slice %d has %d devices", i, len(s.Devices))
			}
			for _, d := range s.Devices {
				gpu := d.Name[:6]
				perGPU[gpu]++
				if homes[gpu] == nil {
					homes[gpu] = map[int]bool{}
				}
				homes[gpu][i] = true
			}
		}
		for gpu, n := range perGPU {
			if want := (n + slices.MaxDevices - 1) / slices.MaxDevices; len(homes[gpu]) != want {
				t.Fatalf("%d devices of %s are in %d slices", n, gpu, len(homes[gpu]))
			}
		}
	})
}

// On any wiring and with anything taken, what the scheduler gives for one domain is all-to-all,
// and one domain with enough free GPUs is enough.
func TestSchedulerNeverSplitsADomain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "gpus")
		wires := make([][]int, n)
		for i := range wires {
			wires[i] = make([]int, n)
			for j := range i {
				links := rapid.IntRange(0, 2).Draw(t, "links")
				wires[i][j], wires[j][i] = links, links
			}
		}
		s := inventorytest.New().Add(inventorytest.Board{LinkVersion: 3, LinkMBps: 25000}, n).Wire(0, wires).Snapshot
		in := healthy(s)
		sched := slicestest.New(slices.Build(in).Slices, false)
		free := map[string]int{}
		for i, g := range s.GPUs {
			if rapid.IntRange(0, 3).Draw(t, "taken") == 0 {
				sched.Take(name(s, i))
			} else if d := in.Topology.GPUs[g.PCI].Domain; d != "" {
				free[d]++
			}
		}
		count := rapid.IntRange(1, 4).Draw(t, "count")
		fits := false
		for _, n := range free {
			fits = fits || n >= count
		}
		got, err := sched.Free(t.Context(), slicestest.Claim(byDomain, slicestest.Request("gpus", int64(count))))
		if err != nil || (len(got) == count) != fits {
			t.Fatalf("%d GPUs of one domain, free %v: %v, %v", count, free, got, err)
		}
		var picked []int
		for _, d := range got {
			picked = append(picked, stdslices.IndexFunc(s.GPUs, func(g inventory.GPU) bool { return device.GPUName(g.PCI) == d }))
		}
		for a, i := range picked {
			for _, j := range picked[:a] {
				if wires[i][j] == 0 {
					t.Fatalf("GPUs %d and %d are not linked", i, j)
				}
			}
		}
	})
}

func TestErrorsOfTheAllocatorAreTold(t *testing.T) {
	sched := slicestest.New(slices.Build(healthy(inventorytest.T4())).Slices, false)
	unknown := slicestest.Request("gpus", 1)
	unknown.Exactly.DeviceClassName = "nobody"
	for want, request := range map[string]resourceapi.DeviceRequest{
		"nobody":     unknown,
		"allocating": slicestest.Request("gpus", 1, `device.attributes["gpu.nvidia.com"].nothing == 1`),
	} {
		if got, err := sched.Allocate(t.Context(), slicestest.Claim("", request)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, got, err)
		}
	}
}

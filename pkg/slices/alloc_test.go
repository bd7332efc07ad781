package slices_test

import (
	"math/bits"
	stdslices "slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/slices"
	. "github.com/gpu-dra/driver/pkg/slices/slicestest"
)

const (
	byDomain = Driver + "/nvlinkDomain"
	byClique = Driver + "/nvlinkCliques"
	byRoot   = "resource.kubernetes.io/pcieRoot"
)

func name(s inventory.Snapshot, i int) string { return device.GPUName(s.GPUs[i].PCI) }

// allocate asks for a claim and gives GPU numbers of the machine; nil when it does not fit.
func allocate(t *testing.T, sched *Scheduler, machine inventory.Snapshot, claim *resourceapi.ResourceClaim) []int {
	t.Helper()
	devices, err := sched.Allocate(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, d := range devices {
		out = append(out, stdslices.IndexFunc(machine.GPUs, func(g inventory.GPU) bool { return device.GPUName(g.PCI) == d }))
	}
	return out
}

func gpus(n int64) resourceapi.DeviceRequest { return Request("gpus", n) }

// What claims get on each machine, with some GPUs taken.
func TestAllocation(t *testing.T) {
	memory := func(size string) string {
		return `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("` + size + `")) >= 0`
	}
	numa := `device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 1`
	size := `device.attributes["gpu.nvidia.com"].?nvlinkDomainSize.orValue(0) >= `
	capability := `device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.8.0"))`
	for name, tc := range map[string]struct {
		machine inventory.Snapshot
		taken   []int
		claim   *resourceapi.ResourceClaim
		want    []int
	}{
		"four in a domain":                  {inventorytest.TwoIslands(), nil, Claim(byDomain, gpus(4)), []int{0, 1, 2, 3}},
		"four, one taken: the other island": {inventorytest.TwoIslands(), []int{1}, Claim(byDomain, gpus(4)), []int{4, 5, 6, 7}},
		"four, two of one island taken":     {inventorytest.TwoIslands(), []int{0, 1}, Claim(byDomain, gpus(4)), []int{4, 5, 6, 7}},
		"four, one of each taken: none":     {inventorytest.TwoIslands(), []int{1, 5}, Claim(byDomain, gpus(4)), nil},
		"four anywhere":                     {inventorytest.TwoIslands(), []int{1, 5}, Claim("", gpus(4)), []int{0, 2, 3, 4}},
		"eight of two islands: none":        {inventorytest.TwoIslands(), nil, Claim(byDomain, gpus(8)), nil},
		"eight on one switch":               {inventorytest.HGXH100(), nil, Claim(byDomain, gpus(8)), []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"eight of sixteen":                  {inventorytest.SixteenGPUs(), []int{0}, Claim(byDomain, gpus(8)), []int{8, 9, 10, 11, 12, 13, 14, 15}},
		"bridge: two":                       {inventorytest.BridgePairs(), []int{0}, Claim(byDomain, gpus(2)), []int{2, 3}},
		"bridge: two, all pairs broken":     {inventorytest.BridgePairs(), []int{0, 3, 4, 7}, Claim(byDomain, gpus(2)), nil},
		"bridge: four never":                {inventorytest.BridgePairs(), nil, Claim(byDomain, gpus(4)), nil},
		"no NVLink: two never":              {inventorytest.L40S(), nil, Claim(byDomain, gpus(2)), nil},
		"no NVLink: one never":              {inventorytest.T4(), nil, Claim(byDomain, gpus(1)), nil},
		"cube mesh: four":                   {inventorytest.CubeMesh(), []int{2}, Claim(byDomain, gpus(4)), []int{4, 5, 6, 7}},
		"memory of 40Gi and more":           {inventorytest.Mixed(), nil, Claim("", Request("gpus", 1, memory("40Gi"))), []int{0}},
		"memory of 81Gi and more":           {inventorytest.Mixed(), nil, Claim("", Request("gpus", 1, memory("81Gi"))), nil},
		"any: the one without NVLink first": {inventorytest.Mixed(), nil, Claim("", gpus(1)), []int{2}},
		"any two":                           {inventorytest.Mixed(), nil, Claim("", gpus(2)), []int{2, 3}},
		"compute capability":                {inventorytest.L40S(), nil, Claim("", Request("gpus", 1, capability)), []int{0}},
		"compute capability too low":        {inventorytest.T4(), nil, Claim("", Request("gpus", 1, capability)), nil},
		"NUMA node 1":                       {inventorytest.TwoIslands(), nil, Claim("", Request("gpus", 2, numa)), []int{4, 5}},
		"one PCIe root":                     {inventorytest.TwoIslands(), []int{0}, Claim(byRoot, gpus(2)), []int{2, 3}},
		"three of one PCIe root: none":      {inventorytest.TwoIslands(), nil, Claim(byRoot, gpus(3)), nil},
		"a domain of at least eight":        {inventorytest.TwoIslands(), nil, Claim(byDomain, Request("gpus", 2, size+"8")), nil},
		"a domain of at least four":         {inventorytest.TwoIslands(), nil, Claim(byDomain, Request("gpus", 2, size+"4")), []int{0, 1}},
		"two requests in one domain":        {inventorytest.TwoIslands(), []int{0, 1}, Claim(byDomain, Request("a", 1), Request("b", 2)), []int{4, 5, 6}},
		"tray of a rack":                    {inventorytest.GB200Tray(), nil, Claim(byDomain, gpus(4)), []int{0, 1, 2, 3}},
		"first choice does not fit: second": {inventorytest.Mixed(), nil, Claim("", FirstOf("gpus", Request("big", 1, memory("81Gi")), Request("small", 2, memory("40Gi")))), []int{0, 1}},
		"first choice fits":                 {inventorytest.Mixed(), nil, Claim("", FirstOf("gpus", Request("big", 1, memory("80Gi")), Request("any", 1))), []int{0}},
		"a domain, or as many anywhere":     {inventorytest.TwoIslands(), []int{0, 4}, Claim("", FirstOf("gpus", Request("eight", 8), Request("six", 6))), []int{1, 2, 3, 5, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			sched := New(slices.Build(healthy(tc.machine)).Slices, false)
			for _, i := range tc.taken {
				sched.Take(device.GPUName(tc.machine.GPUs[i].PCI))
			}
			if diff := cmp.Diff(tc.want, allocate(t, sched, tc.machine, tc.claim)); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever is taken, a claim with matchAttribute gets GPUs that are all linked to each other,
// and gets them whenever one domain has enough left.
func TestCubeMeshNeverSplits(t *testing.T) {
	s := inventorytest.CubeMesh()
	wired := func(i, j int) bool {
		return stdslices.ContainsFunc(s.GPUs[i].NVLink.Links, func(l inventory.Link) bool { return l.Peer == s.GPUs[j].PCI })
	}
	pool := slices.Build(healthy(s)).Slices
	for taken := range 1 << 8 {
		sched := New(pool, false)
		for i := range 8 {
			if taken&(1<<i) != 0 {
				sched.Take(name(s, i))
			}
		}
		most := max(4-bits.OnesCount(uint(taken&0x0f)), 4-bits.OnesCount(uint(taken&0xf0)))
		for _, count := range []int{2, 3, 4} {
			devices, err := sched.Free(t.Context(), Claim(byDomain, gpus(int64(count))))
			if err != nil {
				t.Fatal(err)
			}
			if (len(devices) == count) != (count <= most) {
				t.Fatalf("taken %08b: %d GPUs in one domain gave %v", taken, count, devices)
			}
			for a := range devices {
				for b := range a {
					i := stdslices.IndexFunc(s.GPUs, func(g inventory.GPU) bool { return device.GPUName(g.PCI) == devices[a] })
					j := stdslices.IndexFunc(s.GPUs, func(g inventory.GPU) bool { return device.GPUName(g.PCI) == devices[b] })
					if !wired(i, j) {
						t.Fatalf("taken %08b: %s and %s are not linked", taken, devices[a], devices[b])
					}
				}
			}
		}
	}
}

// With list attributes a pair across the halves of the cube mesh is found too.
func TestCliquesAreExact(t *testing.T) {
	s := inventorytest.CubeMesh()
	in := input(s, s, device.WithLists())
	for _, tc := range []struct {
		free, want []int
		count      int64
	}{
		{free: []int{0, 4}, want: []int{0, 4}, count: 2},
		{free: []int{0, 5}, want: nil, count: 2},
		{free: []int{1, 4, 5}, want: []int{1, 5}, count: 2},
		{free: []int{1, 4, 5}, want: nil, count: 3},
	} {
		sched := New(slices.Build(in).Slices, true)
		for i := range 8 {
			if !stdslices.Contains(tc.free, i) {
				sched.Take(name(s, i))
			}
		}
		if diff := cmp.Diff(tc.want, allocate(t, sched, s, Claim(byClique, gpus(tc.count)))); diff != "" {
			t.Errorf("free %v:\n%s", tc.free, diff)
		}
	}
}

// Requests of one and two GPUs that any GPU can serve leave the other domain whole.
func TestSmallRequestsFillOneDomain(t *testing.T) {
	for _, sizes := range [][]int64{{1, 1, 1, 1}, {1, 2, 1}, {2, 2}, {2, 1, 1}} {
		s := inventorytest.TwoIslands()
		sched := New(slices.Build(healthy(s)).Slices, false)
		for _, n := range sizes {
			if got := allocate(t, sched, s, Claim(byDomain, gpus(n))); len(got) != int(n) {
				t.Fatalf("%v: %d GPUs gave %v", sizes, n, got)
			}
		}
		if diff := cmp.Diff([]int{4, 5, 6, 7}, allocate(t, sched, s, Claim(byDomain, gpus(4)))); diff != "" {
			t.Errorf("after %v:\n%s", sizes, diff)
		}
	}
}

// An island that lost a member serves small claims, so that the whole one stays for four.
func TestBrokenIslandServesSmallClaims(t *testing.T) {
	s := inventorytest.TwoIslands()
	sched := New(slices.Build(input(s, inventorytest.Lose(s, at(s, 5)))).Slices, false)
	for _, want := range []int{4, 6, 7} {
		if got := allocate(t, sched, s, Claim("", gpus(1))); !cmp.Equal(got, []int{want}) {
			t.Errorf("got %v, want %d", got, want)
		}
	}
	if got := allocate(t, sched, s, Claim(byDomain, gpus(4))); !cmp.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("four in a domain: %v", got)
	}
}

// A GPU whose links are down has no domain, so a constraint is not met by accident.
func TestUnlinkedGPUMeetsNoConstraint(t *testing.T) {
	s := inventorytest.BridgePairs()
	broken := inventorytest.Unlink(inventorytest.Unlink(s, at(s, 0), at(s, 1)), at(s, 2), at(s, 3))
	sched := New(slices.Build(input(s, broken)).Slices, false)
	if got := allocate(t, sched, s, Claim(byDomain, gpus(2))); !cmp.Equal(got, []int{4, 5}) {
		t.Errorf("got %v", got)
	}
}

// A taint keeps claims off a GPU.
func TestTaintedGPUIsPassedOver(t *testing.T) {
	s := inventorytest.TwoIslands()
	in := healthy(s)
	in.Taints = map[string][]resourceapi.DeviceTaint{name(s, 0): {{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	if got := allocate(t, New(slices.Build(in).Slices, false), s, Claim(byDomain, gpus(4))); !cmp.Equal(got, []int{4, 5, 6, 7}) {
		t.Errorf("got %v", got)
	}
}

// The whole path to partitions: devices that share counters in slices of their own.
func TestCountersAreUnderstood(t *testing.T) {
	in := slices.Input{Counters: []resourceapi.CounterSet{{Name: "gpu-a", Counters: counters("slot")}}}
	for _, n := range []string{"a-0", "a-1"} {
		in.Devices = append(in.Devices, board{name: n, published: resourceapi.Device{
			Attributes:       attributes{"type": text("gpu")},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("gpu-a", "slot")},
		}})
	}
	sched := New(slices.Build(in).Slices, false)
	for _, want := range []int{1, 0} {
		got, err := sched.Allocate(t.Context(), Claim("", gpus(1)))
		if err != nil || len(got) != want {
			t.Errorf("got %v, %v; want %d devices", got, err, want)
		}
	}
}

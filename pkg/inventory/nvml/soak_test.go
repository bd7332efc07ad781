package nvml_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim"
)

// trouble is what happened to the GPUs of a node so far.
type trouble struct {
	machine
	lost, removed map[int]bool
	// harmed are the GPUs that something was done to that may cost them.
	harmed map[int]bool
}

func (m *trouble) gpu(t *rapid.T) int { return rapid.IntRange(0, m.GPUCount()-1).Draw(t, "GPU") }

// strike does one bad thing to one GPU.
func (m *trouble) strike(t *rapid.T) {
	n := m.gpu(t)
	switch rapid.SampledFrom([]string{"lose", "remove", "fail", "link", "fabric"}).Draw(t, "strike") {
	case "lose":
		m.lost[n], m.harmed[n] = true, true
		check(t, m.LoseGPU(n))
	case "remove":
		if !m.removed[n] {
			m.removed[n], m.harmed[n] = true, true
			check(t, m.RemoveGPU(n))
		}
	case "fail":
		call := rapid.SampledFrom([]string{
			"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName",
			"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfoV",
		}).Draw(t, "call")
		code := rapid.SampledFrom([]uint32{uninitialized, notSupported, noPermission, gpuIsLost, unknown}).Draw(t, "code")
		count := rapid.SampledFrom([]int64{1, 2, gpusim.Forever}).Draw(t, "count")
		m.harmed[n] = true
		check(t, m.FailCall(gpusim.CallFault{Function: call, GPU: n, Code: code, Count: count}))
	case "link":
		check(t, m.SetLink(n, rapid.IntRange(0, 17).Draw(t, "link"), false))
	case "fabric":
		check(t, m.SetFabric(n, gpusim.FabricChange{State: rapid.SampledFrom([]string{"notStarted", "inProgress"}).Draw(t, "state")}))
	}
}

// heal undoes all of it.
func (m *trouble) heal(t *rapid.T) {
	check(t, m.ClearFaults())
	for n := range m.GPUCount() {
		check(t, m.HealGPU(n))
		if m.removed[n] {
			check(t, m.AddGPU(n))
		}
		check(t, m.SetFabric(n, gpusim.FabricChange{State: "completed"}))
		for link := range 18 {
			check(t, m.SetLink(n, link, true))
		}
	}
	m.lost, m.removed, m.harmed = map[int]bool{}, map[int]bool{}, map[int]bool{}
}

func check(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever befalls some GPUs, in any order: the driver stays present, the others stay usable,
// each GPU of the bus is in exactly one place, and once all is well again nothing is left of it.
func TestTroubleStaysWhereItIs(t *testing.T) {
	m := &trouble{machine: newMachine(t, "gb200-nvl72"), lost: map[int]bool{}, removed: map[int]bool{}, harmed: map[int]bool{}}
	healthy := m.scan(t)
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			m.strike(t)
			m.judge(t, m.scanIn(t))
		}
		m.heal(t)
		// A GPU that was plugged in again needs the session that the first scan opens.
		if got := m.scanIn(t); !got.Same(healthy) {
			t.Fatalf("after healing: %+v, unusable %+v, problems %+v", inventory.Diff(healthy, got), got.Unusable, got.Problems)
		}
	})
}

func (m *trouble) scanIn(t *rapid.T) inventory.Snapshot {
	s, err := m.scanner.Scan(t.Context())
	check(t, err)
	return s
}

func (m *trouble) judge(t *rapid.T, s inventory.Snapshot) {
	if !s.Driver.Present {
		t.Fatalf("the driver is gone: %s", s.Driver.Missing)
	}
	places := map[pci.Address]int{}
	for _, g := range s.GPUs {
		places[g.PCI]++
	}
	for _, u := range s.Unusable {
		places[u.PCI]++
	}
	for n := range m.GPUCount() {
		at := m.addressOf(n)
		switch {
		case m.removed[n]:
			if places[at] > 1 {
				t.Fatalf("%v was removed and is in %d places", at, places[at])
			}
		case places[at] != 1:
			t.Fatalf("%v is in %d places", at, places[at])
		}
	}
	for _, u := range s.Unusable {
		for n := range m.GPUCount() {
			if m.addressOf(n) == u.PCI && !m.harmed[n] {
				t.Fatalf("%v was left alone and is unusable: %s", u.PCI, u.Reason)
			}
		}
	}
}

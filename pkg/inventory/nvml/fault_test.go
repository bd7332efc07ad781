package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// Codes of nvmlReturn_t.
const (
	uninitialized   = 1
	notSupported    = 3
	noPermission    = 4
	driverNotLoaded = 9
	gpuIsLost       = 15
	versionMismatch = 18
	unknown         = 999
)

// sick is the GPU of a four-GPU node that the faults hit.
const sick = 1

func (m machine) addressOf(number int) pci.Address { return address(&m.Spec().GPUs[number]) }

// wantOthers checks that the sick GPU alone is unusable, for a reason that says text.
func (m machine) wantOthers(t *testing.T, s inventory.Snapshot, text string) {
	t.Helper()
	if !s.Driver.Present || len(s.GPUs) != m.GPUCount()-1 {
		t.Errorf("driver %+v, %d GPUs, want %d", s.Driver, len(s.GPUs), m.GPUCount()-1)
	}
	if len(s.Unusable) != 1 || s.Unusable[0].PCI != m.addressOf(sick) || !strings.Contains(s.Unusable[0].Reason, text) {
		t.Errorf("unusable are %+v, want %v with %q", s.Unusable, m.addressOf(sick), text)
	}
}

// wantAll checks that all GPUs are usable.
func (m machine) wantAll(t *testing.T, s inventory.Snapshot) {
	t.Helper()
	if !s.Driver.Present || len(s.GPUs) != m.GPUCount() || len(s.Unusable) != 0 {
		t.Errorf("driver %+v, %d GPUs, unusable %+v", s.Driver, len(s.GPUs), s.Unusable)
	}
}

func TestALostGPU(t *testing.T) {
	m := newMachine(t, "gb200-nvl72")
	m.wantAll(t, m.scan(t))
	do(t, m.LoseGPU(sick))
	lost := m.scan(t)
	m.wantOthers(t, lost, "lost: ")
	for _, g := range lost.GPUs {
		if len(g.NVLink.Peers) != 2 || !g.NVLink.PeersKnown {
			t.Errorf("%v has the peers %v, known %v", g.PCI, g.NVLink.Peers, g.NVLink.PeersKnown)
		}
	}
	if again := m.scan(t); !again.Same(lost) {
		t.Errorf("a second look differs: %+v", inventory.Diff(lost, again))
	}
	do(t, m.HealGPU(sick))
	m.wantAll(t, m.scan(t))
}

func TestAGPUThatIsLostAtTheStart(t *testing.T) {
	m := newMachine(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) { f.GPUs[sick].Lost = true }))
	m.wantOthers(t, m.scan(t), "lost: ")
}

func TestAGPUThatLeavesAndComesBack(t *testing.T) {
	m := newMachine(t, "t4-4")
	all := m.scan(t)
	m.wantAll(t, all)
	do(t, m.RemoveGPU(sick))
	without := m.scan(t)
	want := []inventory.Change{{PCI: m.addressOf(sick), Kind: inventory.Left, Detail: m.UUIDs()[sick]}}
	// Until the next session, NVML has it as lost.
	if got := inventory.Diff(all, without); len(got) != 1 || (got[0].Kind != inventory.Left && got[0].Kind != inventory.Failed) {
		t.Errorf("changes are %+v, want %+v", got, want)
	}
	do(t, m.AddGPU(sick))
	m.wantAll(t, m.scan(t))
}

// A GPU that was not there when the session began needs a new one: no restart, no waiting.
func TestAGPUThatAppears(t *testing.T) {
	m := newMachine(t, "t4-4")
	do(t, m.RemoveGPU(sick))
	if got := m.scan(t); len(got.GPUs) != 3 || len(got.Unusable) != 0 {
		t.Errorf("%d GPUs, unusable %+v", len(got.GPUs), got.Unusable)
	}
	do(t, m.AddGPU(sick))
	m.wantAll(t, m.scan(t))
}

// calls are the facts that a failing call costs.
func calls() map[string]string {
	return map[string]string{
		"nvmlDeviceGetName":                   "productName",
		"nvmlDeviceGetBrand":                  "brand",
		"nvmlDeviceGetArchitecture":           "architecture",
		"nvmlDeviceGetSerial":                 "serial",
		"nvmlDeviceGetAddressingMode":         "addressingMode",
		"nvmlDeviceGetCudaComputeCapability":  "cudaComputeCapability",
		"nvmlDeviceGetMemoryInfo":             "memory",
		"nvmlDeviceGetEccMode":                "eccEnabled",
		"nvmlDeviceGetNvLinkState":            "nvlink 0",
		"nvmlDeviceGetNvLinkVersion":          "nvlink 0",
		"nvmlDeviceGetNvLinkRemoteDeviceType": "nvlink 0",
		"nvmlDeviceGetP2PStatus":              "nvlinkPeers",
		"nvmlDeviceGetGpuFabricInfoV":         "fabric",
	}
}

func TestEachCallThatFailsCostsItsFactAlone(t *testing.T) {
	m := newMachine(t, "gb200-nvl72")
	for call, fact := range calls() {
		t.Run(call, func(t *testing.T) {
			// What an earlier session knows is not asked again.
			do(t, m.library.Close(t.Context()))
			do(t, m.FailCall(gpusim.CallFault{Function: call, GPU: sick, Code: unknown, Count: gpusim.Forever}))
			got := m.scan(t)
			m.wantAll(t, got)
			i := slices.IndexFunc(got.Problems, func(p inventory.Problem) bool { return p.PCI == m.addressOf(sick) })
			if i < 0 || got.Problems[i].Fact != fact {
				t.Fatalf("problems are %+v, want %q of %v", got.Problems, fact, m.addressOf(sick))
			}
			if err := got.Problems[i].Err; !strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "code 999") {
				t.Errorf("the problem is %v", err)
			}
			do(t, m.ClearFaults())
		})
	}
}

func TestACallThatTheBoardDoesNotSupportIsNoProblem(t *testing.T) {
	m := newMachine(t, "gb200-nvl72")
	for _, call := range append(slices.Collect(maps.Keys(calls())), "nvmlDeviceGetMigMode", "nvmlDeviceGetVirtualizationMode") {
		do(t, m.FailCall(gpusim.CallFault{Function: call, GPU: sick, Code: notSupported, Count: gpusim.Forever}))
	}
	got := m.scan(t)
	m.wantAll(t, got)
	if len(got.Problems) != 0 {
		t.Errorf("problems are %+v", got.Problems)
	}
	bare := got.GPUs[sick]
	want := inventory.GPU{
		PCI: m.addressOf(sick), UUID: m.UUIDs()[sick], Minor: sick, Index: sick, Fabric: bare.Fabric,
		NVLink: bare.NVLink, NUMANode: bare.NUMANode, PCIeRoot: bare.PCIeRoot, PCIDevice: 0x2941, // sysfs has these
	}
	if diff := cmp.Diff(want, bare); diff != "" || bare.NVLink.PeersKnown || bare.NVLink.Links[0].Active {
		t.Errorf("NVLink %+v, GPU (-want +got):\n%s", bare.NVLink, diff)
	}
}

func TestEachCallThatSaysLostMakesTheGPULost(t *testing.T) {
	m := newMachine(t, "t4-4")
	for _, call := range []string{"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuFabricInfoV"} {
		t.Run(call, func(t *testing.T) {
			do(t, m.FailCall(gpusim.CallFault{Function: call, GPU: sick, Code: gpuIsLost, Count: gpusim.Forever}))
			do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetHandleByPciBusId", GPU: sick, Code: gpuIsLost, Count: gpusim.Forever}))
			m.wantOthers(t, m.scan(t), "lost: ")
			do(t, m.ClearFaults())
		})
	}
}

// What must be known of a GPU that is handed out, and NVML's reason where it is not.
func TestAGPUWithoutIdentity(t *testing.T) {
	m := newMachine(t, "t4-4")
	for call, reason := range map[string]string{
		"nvmlDeviceGetUUID":        "no UUID",
		"nvmlDeviceGetMinorNumber": "no device minor number",
		// Without an address, NVML tells by that of the bus which GPU it is.
		"nvmlDeviceGetPciInfo":            "NVML refuses it: nvmlDeviceGetPciInfo_v3: Unknown Error (code 999)",
		"nvmlDeviceGetHandleByIndex":      "NVML refuses it: nvmlDeviceGetHandleByIndex_v2: Unknown Error (code 999)",
		"nvmlDeviceGetMigMode":            "its MIG mode cannot be read: nvmlDeviceGetMigMode: Unknown Error (code 999)",
		"nvmlDeviceGetVirtualizationMode": "its virtualization mode cannot be read: nvmlDeviceGetVirtualizationMode: Unknown Error",
	} {
		t.Run(call, func(t *testing.T) {
			do(t, m.FailCall(gpusim.CallFault{Function: call, GPU: sick, Code: unknown, Count: gpusim.Forever}))
			m.wantOthers(t, m.scan(t), reason)
			do(t, m.ClearFaults())
		})
	}
}

func TestAVGPUHostIsLeftAlone(t *testing.T) {
	m := newMachine(t, "l40s-8")
	do(t, change(m.Node, func(s *simstate.Node) { s.GPUs[sick].Virtualization = 3 }))
	m.wantOthers(t, m.scan(t), "vGPUs")
	do(t, change(m.Node, func(s *simstate.Node) { s.GPUs[sick].Virtualization = 2 }))
	m.wantAll(t, m.scan(t))
}

func TestLinksAndFabricInEveryState(t *testing.T) {
	m := newMachine(t, "gb200-nvl72")
	do(t, m.SetLink(sick, 3, false))
	for state, want := range map[string]inventory.FabricState{
		"notSupported": inventory.FabricNotSupported, "notStarted": inventory.FabricNotStarted, "inProgress": inventory.FabricInProgress,
	} {
		do(t, m.SetFabric(sick, gpusim.FabricChange{State: state}))
		if got := m.scan(t).GPUs[sick].Fabric; got != (inventory.Fabric{State: want, Healthy: true}) {
			t.Errorf("%s is read as %+v", state, got)
		}
	}
	failed, degraded := uint32(unknown), uint32(0x1a9)
	do(t, m.SetFabric(sick, gpusim.FabricChange{State: "completed", Status: &failed, HealthMask: &degraded}))
	got := m.scan(t).GPUs[sick]
	if got.Fabric.Healthy || !strings.Contains(got.Fabric.Reason, "registration ended with Unknown Error, bandwidth degraded") {
		t.Errorf("fabric is %+v", got.Fabric)
	}
	if l := got.NVLink.Links[3]; l != (inventory.Link{}) || !got.NVLink.Links[2].Active {
		t.Errorf("the link that is down is read as %+v", l)
	}
}

// Drivers know the fabric's structure in versions 1 to 3; each has what the next one has, but
// for the health.
func TestOlderFabricStructures(t *testing.T) {
	m := newMachine(t, "gb200-nvl72")
	want := m.scan(t).GPUs[sick].Fabric
	for name, c := range map[string]struct {
		code  uint32
		count int64
	}{
		"version 2, third unknown":  {25, 1},
		"version 1, second unknown": {25, 2},
		"version 1, no such call":   {13, 2},
	} {
		t.Run(name, func(t *testing.T) {
			do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetGpuFabricInfoV", GPU: sick, Code: c.code, Count: c.count}))
			got := m.scan(t)
			if diff := cmp.Diff(want, got.GPUs[sick].Fabric); diff != "" || len(got.Problems) != 0 {
				t.Errorf("problems %+v, fabric (-want +got):\n%s", got.Problems, diff)
			}
		})
	}
}

// Without the count of links NVML is asked for each number until it knows no more.
func TestLinksWithoutTheirCount(t *testing.T) {
	for preset, links := range map[string]int{"a30-4": 4, "t4-4": 0} {
		t.Run(preset, func(t *testing.T) {
			m := newMachine(t, preset)
			do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetFieldValues", GPU: gpusim.AnyGPU, Code: unknown, Count: gpusim.Forever}))
			got := m.scan(t)
			if len(got.GPUs) != 4 || len(got.GPUs[0].NVLink.Links) != links || len(got.Problems) != 0 {
				t.Errorf("%d links, want %d; problems %+v", len(got.GPUs[0].NVLink.Links), links, got.Problems)
			}
		})
	}
}

func TestADriverThatDoesNotStart(t *testing.T) {
	m := newMachine(t, "t4-4")
	for code, text := range map[uint32]string{
		versionMismatch: "different versions", driverNotLoaded: "not loaded", noPermission: "privileged", unknown: "Unknown Error",
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			do(t, m.library.Close(t.Context()))
			do(t, m.FailCall(gpusim.CallFault{Function: "nvmlInit", GPU: gpusim.AnyGPU, Code: code, Count: gpusim.Forever}))
			got := m.scan(t)
			if got.Driver.Present || !strings.Contains(got.Driver.Missing, text) || !strings.Contains(got.Driver.Missing, "shows 4 NVIDIA GPUs") {
				t.Errorf("driver is %+v", got.Driver)
			}
			var code *session.CallError
			if !errors.As(got.Driver.Err, &code) || len(got.Unusable) != 4 {
				t.Errorf("error %v, unusable %+v", got.Driver.Err, got.Unusable)
			}
			do(t, m.ClearFaults())
			m.wantAll(t, m.scan(t))
		})
	}
}

// A call about the node that fails while the driver is there says nothing of its GPUs. What the
// driver says of itself, and what keeps failing without a repair, is no such thing.
func TestTransientFailures(t *testing.T) {
	for name, c := range map[string]struct {
		fault     gpusim.CallFault
		transient bool
	}{
		"unknown":           {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: unknown, Count: 1}, true},
		"out of resources":  {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: 23, Count: 1}, true},
		"no driver":         {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: driverNotLoaded, Count: gpusim.Forever}, false},
		"other driver":      {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: versionMismatch, Count: gpusim.Forever}, false},
		"not allowed":       {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: noPermission, Count: 1}, false},
		"not supported":     {gpusim.CallFault{Function: "nvmlDeviceGetCount", Code: notSupported, Count: 1}, false},
		"lost":              {gpusim.CallFault{Function: "nvmlSystemGetDriverVersion", Code: gpuIsLost, Count: 1}, true},
		"no initialisation": {gpusim.CallFault{Function: "nvmlInit", Code: unknown, Count: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "t4-4")
			c.fault.GPU = gpusim.AnyGPU
			do(t, m.FailCall(c.fault))
			got := m.scan(t)
			if err := got.Driver.Err; got.Driver.Present || err == nil || errors.Is(err, inventory.ErrTransient) != c.transient {
				t.Errorf("driver is %+v, transient %t", got.Driver, errors.Is(err, inventory.ErrTransient))
			}
			do(t, m.ClearFaults())
			m.wantAll(t, m.scan(t))
		})
	}
}

// After a reload of the kernel module, calls answer as if nothing had been initialised.
func TestASessionThatEndedIsBegunAnew(t *testing.T) {
	for call, count := range map[string]int64{"nvmlDeviceGetCount": 1, "nvmlDeviceGetUUID": 4} {
		t.Run(call, func(t *testing.T) {
			m := newMachine(t, "t4-4")
			m.wantAll(t, m.scan(t))
			do(t, m.FailCall(gpusim.CallFault{Function: call, GPU: gpusim.AnyGPU, Code: uninitialized, Count: count}))
			m.wantAll(t, m.scan(t))
		})
	}
}

func TestDriverFactsThatFail(t *testing.T) {
	m := newMachine(t, "t4-4")
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlSystemGetDriverVersion", GPU: gpusim.AnyGPU, Code: unknown}))
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlSystemGetCudaDriverVersion", GPU: gpusim.AnyGPU, Code: unknown}))
	got := m.scan(t)
	m.wantAll(t, got)
	if len(got.Problems) != 2 || got.Problems[0].Fact != "cudaDriverVersion" || got.Problems[1].Fact != "driverVersion" {
		t.Errorf("problems are %+v", got.Problems)
	}
}

func TestAHangingGPULeavesTheOthersServed(t *testing.T) {
	m := machineWith(t, "t4-4", 100*time.Millisecond)
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetSerial", GPU: sick, Hang: true}))
	m.wantOthers(t, m.scan(t), "hangs: nvmlDeviceGetSerial about "+m.addressOf(sick).String())
	// The second time nothing waits: the first call still runs.
	before := time.Now()
	m.wantOthers(t, m.scan(t), "hangs: nvmlDeviceGetSerial")
	t.Logf("the second scan took %v", time.Since(before))
	if err := m.library.Close(t.Context()); !errors.Is(err, inventory.ErrHung) {
		t.Errorf("closed under a running call: %v", err)
	}
	do(t, m.ClearFaults())
	eventually(t, func() bool { return len(m.scan(t).GPUs) == 4 })
}

func TestAHangingLibrary(t *testing.T) {
	m := machineWith(t, "t4-4", 100*time.Millisecond)
	m.wantAll(t, m.scan(t))
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetCount", GPU: gpusim.AnyGPU, Hang: true}))
	for range 2 {
		got := m.scan(t)
		if got.Driver.Present || !errors.Is(got.Driver.Err, inventory.ErrHung) {
			t.Errorf("driver is %+v", got.Driver)
		}
	}
	do(t, m.ClearFaults())
	eventually(t, func() bool { return m.scan(t).Driver.Present })
	m.wantAll(t, m.scan(t))
}

func TestAContextThatEndsDuringACall(t *testing.T) {
	m := newMachine(t, "t4-4")
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetSerial", GPU: sick, Hang: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.scanner.Scan(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	do(t, m.ClearFaults())
	// The call that was left behind was not given up: the next scan waits for it.
	m.wantAll(t, m.scan(t))
}

func TestOperationsTakeTurns(t *testing.T) {
	m := newMachine(t, "t4-4")
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetSerial", GPU: sick, Hang: true}))
	scans := make(chan inventory.Snapshot)
	go func() { scans <- m.scan(t) }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	eventually(t, func() bool {
		_, err := m.library.Read(ctx, nil)
		return errors.Is(err, context.DeadlineExceeded)
	})
	if err := m.library.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	do(t, m.ClearFaults())
	m.wantAll(t, <-scans)
}

package gpusim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// do fails the test on an error of a fault.
func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	ok           = "code 0"
	invalid      = "code 2"
	notSupported = "code 3"
	notLoaded    = "code 9"
	timedOut     = "code 10"
	lost         = "code 15"
	unknown      = "code 999"
)

func TestSessionRules(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := openSession(t, node)
	s.want("init", ok)
	s.want("init", ok)
	s.want("count", "4")
	s.want("handle 4", invalid)
	s.want("handle 0", ok)
	s.want("shutdown", ok)
	s.want("count", "4")
	// The Go binding unloads the library now: handles are made anew.
	s.want("shutdown", ok)
	s.want("init", ok)
	s.want("handle 0", ok)
	s.want("uuid 0", node.UUIDs()[0])
}

func TestLostGPUAnswersLostUntilHealed(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 3)
	do(t, node.LoseGPU(2))
	s.want("uuid 2", lost)
	s.want("used 2", lost)
	s.want("fabric 2", lost)
	s.want("link 2 0", lost)
	s.want("recovery 2", lost)
	s.want("p2p 0 2", lost)
	// Bookkeeping of handles needs no hardware.
	s.want("mig 2", "false")
	s.want("count", "8")
	s.want("handle 2", lost)
	s.want("uuid 1", node.UUIDs()[1])
	do(t, node.HealGPU(2))
	s.want("uuid 2", node.UUIDs()[2])
	s.want("p2p 0 2", "0")
}

func TestGPULostAtStart(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) { f.GPUs[1].Lost = true }))
	s := openSession(t, node)
	s.want("init", ok)
	s.want("count", "4")
	s.want("handle 1", lost)
	s.want("handle 3", ok)
}

func TestGPULeavesAndReturns(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := start(t, node, 2)
	gone := node.Spec().GPUs[1]
	do(t, node.RemoveGPU(1))
	s.want("uuid 1", lost)
	sysfs := filepath.Join(node.SysRoot(), "bus/pci/devices", gone.PCI.String())
	if _, err := os.Lstat(sysfs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("sysfs entry of the removed GPU: %v, want it gone", err)
	}
	s.want("shutdown", ok)
	s.want("init", ok)
	s.want("count", "3")
	s.want("handle 1", ok)
	s.want("uuid 1", node.UUIDs()[2])
	do(t, node.AddGPU(1))
	s.want("count", "3")
	s.want("shutdown", ok)
	s.want("init", ok)
	s.want("count", "4")
	if _, err := os.Stat(sysfs); err != nil {
		t.Errorf("sysfs entry of the returned GPU: %v", err)
	}
}

func TestCallFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		fault gpusim.CallFault
		// want are the answers of successive calls to "used 0".
		want []string
	}{
		{"once by default", gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo_v2", GPU: gpusim.AnyGPU, Code: 999}, []string{unknown, "0"}},
		{"any version of the name", gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 0, Code: 15, Count: 2}, []string{lost, lost, "0"}},
		{"after some calls", gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 0, Code: 999, After: 2}, []string{"0", "0", unknown, "0"}},
		{"other GPU", gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 1, Code: 999, Count: gpusim.Forever}, []string{"0", "0"}},
		{"other function", gpusim.CallFault{Function: "nvmlDeviceGetMemory", GPU: gpusim.AnyGPU, Code: 999, Count: gpusim.Forever}, []string{"0"}},
		{"any function", gpusim.CallFault{Function: gpusim.AnyFunction, GPU: 0, Code: 999, Count: 2}, []string{unknown, unknown, "0"}},
		{"any function of another GPU", gpusim.CallFault{Function: gpusim.AnyFunction, GPU: 1, Code: 999, Count: gpusim.Forever}, []string{"0"}},
		{"for ever", gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 0, Code: 3, Count: gpusim.Forever}, []string{notSupported, notSupported, notSupported}},
	}
	node := gpusim.New(t, "t4-4")
	s := start(t, node, 2)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			do(t, node.FailCall(test.fault))
			for i, want := range test.want {
				if got := s.ask("used 0"); got != want {
					t.Errorf("call %d: got %q, want %q", i, got, want)
				}
			}
			do(t, node.ClearFaults())
			s.want("used 0", "0")
		})
	}
}

// Counters see the calls about their GPU, and change nothing of them, faults included.
func TestCountCalls(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := start(t, node, 2)
	counter := func(gpu int, function string) func() int64 {
		count, err := node.CountCalls(gpu, function)
		do(t, err)
		return func() int64 {
			n, err := count()
			do(t, err)
			return n
		}
	}
	all, memory, name, other := counter(0, gpusim.AnyFunction), counter(0, "nvmlDeviceGetMemoryInfo"), counter(0, "nvmlDeviceGetName"), counter(1, gpusim.AnyFunction)
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 0, Code: 999}))
	for _, want := range []string{unknown, "0", "0"} {
		s.want("used 0", want)
	}
	if have := []int64{all(), memory(), name(), other()}; !slices.Equal(have, []int64{3, 3, 0, 0}) {
		t.Errorf("all, memory, name and another GPU: %v", have)
	}
}

// What is left of faults can be looked at while they are met.
func TestArmedFaults(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := start(t, node, 2)
	want := func(list ...gpusim.CallFault) {
		t.Helper()
		have, err := node.ArmedFaults()
		do(t, err)
		if !slices.Equal(have, list) {
			t.Errorf("armed are %+v, want %+v", have, list)
		}
	}
	want()
	memory := gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: gpusim.AnyGPU, Code: 999, After: 1, Count: 2}
	name := gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 2, Count: gpusim.Forever, Hang: true}
	do(t, node.FailCall(memory))
	do(t, node.FailCall(name))
	want(memory, name)
	s.want("used 0", "0")
	memory.After = 0
	want(memory, name)
	s.want("used 0", unknown)
	memory.Count = 1
	want(memory, name)
	do(t, node.ClearFaults())
	want()
}

func TestFaultsOnCallsWithoutADevice(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlInit", GPU: gpusim.AnyGPU, Code: 9, Count: 2}))
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetCount", GPU: gpusim.AnyGPU, Code: 999}))
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetHandleByIndex", GPU: 2, Code: 4}))
	s := openSession(t, node)
	s.want("init", notLoaded)
	s.want("init", notLoaded)
	s.want("init", ok)
	s.want("count", unknown)
	s.want("count", "4")
	s.want("handle 1", ok)
	s.want("handle 2", "code 4")
	s.want("handle 2", ok)
}

func TestTooManyCallFaults(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	var err error
	for range 33 {
		err = node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 0, Code: 999})
	}
	if !errors.Is(err, gpusim.ErrTooManyFaults) {
		t.Errorf("33rd fault: %v, want ErrTooManyFaults", err)
	}
	do(t, node.ClearFaults())
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 0, Code: 999}))
	if err := node.FailCall(gpusim.CallFault{}); err == nil {
		t.Error("a fault without a function was accepted")
	}
}

func TestSlowAndHangingCalls(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := start(t, node, 1)
	const delay = 80 * time.Millisecond
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 0, Delay: delay}))
	begin := time.Now()
	s.want("name 0", "Tesla T4")
	if took := time.Since(begin); took < delay {
		t.Errorf("the slow call took %s, want at least %s", took, delay)
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetName", GPU: 0, Hang: true, Code: 999}))
	s.send("name 0")
	waitFor(t, func() bool { return armed(t, node) == 0 })
	do(t, node.ClearFaults())
	if got := s.receive(); got != unknown {
		t.Errorf("the released call answered %q, want %q", got, unknown)
	}
	do(t, node.SetLatency(20*time.Millisecond))
	begin = time.Now()
	s.want("name 0", "Tesla T4")
	if took := time.Since(begin); took < 20*time.Millisecond {
		t.Errorf("with latency the call took %s", took)
	}
}

// armed counts the faults that still have calls to hit.
func armed(t *testing.T, node *gpusim.Node) int {
	t.Helper()
	state, err := node.State()
	do(t, err)
	count := 0
	for i := range state.Faults {
		if f := &state.Faults[i]; f.Armed != 0 && f.Remaining != 0 {
			count++
		}
	}
	return count
}

// waitFor polls for what another process is about to do.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatal("the other process never got there")
		case <-tick.C:
		}
	}
}

func TestLinksGoDownOnBothEnds(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "two-islands")
	s := start(t, node, 5)
	s.want("p2p 0 1", "0")
	s.want("p2p 0 4", "5")
	s.want("link 0 12", invalid)
	// GPU 0 has links 0 to 3 to GPU 1, and these are links 0 to 3 there.
	for link := range 4 {
		s.want("p2p 0 1", "0")
		do(t, node.SetLink(0, link, false))
		s.want(fmt.Sprintf("link 0 %d", link), "0")
		s.want(fmt.Sprintf("link 1 %d", link), "0")
	}
	s.want("p2p 0 1", "5")
	s.want("p2p 1 0", "5")
	s.want("p2p 0 2", "0")
	do(t, node.SetLink(1, 2, true))
	s.want("link 0 2", "1")
	s.want("p2p 1 0", "0")
	do(t, node.SetAllLinks(0, false))
	s.want("p2p 0 2", "5")
	s.want("p2p 2 1", "0")
	if err := node.SetLink(0, 12, false); err == nil {
		t.Error("link 12 of 12 was accepted")
	}
}

func TestFabricTimeline(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) { f.Fabric = &nodefile.Fabric{State: "notStarted"} }))
	s := start(t, node, 2)
	s.want("fabric 0", "1 0 0")
	s.want("p2p 0 1", "5")
	for number := range 2 {
		do(t, node.SetFabric(number, gpusim.FabricChange{State: "inProgress"}))
	}
	s.want("fabric 1", "2 0 0")
	s.want("p2p 0 1", "5")
	do(t, node.SetFabric(0, gpusim.FabricChange{State: "completed"}))
	s.want("p2p 0 1", "5")
	failed, well, clique := uint32(999), uint32(0), uint32(7)
	do(t, node.SetFabric(1, gpusim.FabricChange{State: "completed", Status: &failed}))
	s.want("fabric 1", "3 999 0")
	s.want("p2p 0 1", "5")
	do(t, node.SetFabric(1, gpusim.FabricChange{Status: &well}))
	s.want("p2p 0 1", "0")
	do(t, node.SetFabric(1, gpusim.FabricChange{Clique: &clique}))
	s.want("p2p 0 1", "5")
	if err := node.SetFabric(0, gpusim.FabricChange{State: "sideways"}); err == nil {
		t.Error("an unknown fabric state was accepted")
	}
}

func TestModesAreSharedBetweenProcesses(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	a, b := start(t, node, 2), start(t, node, 2)
	a.want("setcompute 0 3", ok)
	b.want("compute 0", "3")
	b.want("compute 1", "0")
	b.want("setcompute 0 1", notSupported)
	b.want("setcompute 0 9", invalid)
	b.want("setcompute 0 0", ok)
	a.want("compute 0", "0")
}

func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 1)
	s.send("wait 0 60")
	if got := s.receive(); got != "waiting" {
		t.Fatalf("got %q", got)
	}
	if got := s.receive(); got != timedOut+" true" {
		t.Errorf("waiting without an event gave %q, want a timeout and not before its time", got)
	}
}

func TestXIDWakesTheWaiterOfThatGPU(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 3)
	s.send("wait 2 20000")
	if got := s.receive(); got != "waiting" {
		t.Fatalf("got %q", got)
	}
	do(t, node.InjectXID(1, gpusim.XID{Code: 79}))
	do(t, node.InjectXID(2, gpusim.XID{Code: 48}))
	if got, want := s.receive(), fmt.Sprintf("event 8 48 %d", uint32(0xffffffff)); got != want {
		t.Errorf("the waiter got %q, want %q", got, want)
	}
	instance := uint32(9)
	s.send("wait 2 20000")
	s.receive()
	do(t, node.InjectXID(2, gpusim.XID{Code: 94, GPUInstance: &instance}))
	if got := s.receive(); got != "event 8 94 9" {
		t.Errorf("the waiter got %q, want the instance", got)
	}
	if err := node.InjectXID(8, gpusim.XID{Code: 1}); !errors.Is(err, gpusim.ErrNoGPU) {
		t.Errorf("XID on GPU 8 of 8: %v", err)
	}
}

func TestOddValues(t *testing.T) {
	t.Parallel()
	long := "NVIDIA " + fmt.Sprintf("%088d", 7)
	node := gpusim.New(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) {
		f.Driver.Version = "580.105.08-custom"
		none := -1
		f.GPUs[0].NUMA = &none
		f.GPUs[0].Override = []byte(`{"product": "` + long + `", "unsupported": ["memory", "serial", "moduleID", "boardPartNumber"], "ecc": false}`)
	}))
	s := start(t, node, 2)
	s.want("name 0", long)
	s.want("used 0", notSupported)
	s.want("serial 0", notSupported)
	s.want("module 0", notSupported)
	s.want("used 1", "0")
	if _, err := os.Stat(filepath.Join(filepath.Dir(node.Library()), "libcuda.so.580.105.08-custom")); err != nil {
		t.Error(err)
	}
	do(t, node.SetUsedMemory(1, 5<<20))
	s.want("used 1", fmt.Sprint(5<<20))
	do(t, node.SetRecoveryAction(2, 1))
	s.want("recovery 1", notSupported) // T4 reports none.
}

func TestFaultsNameTheWrongGPU(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	for name, err := range map[string]error{
		"lose": node.LoseGPU(4), "heal": node.HealGPU(-1), "remove": node.RemoveGPU(4), "add": node.AddGPU(9),
		"link": node.SetLink(4, 0, true), "links": node.SetAllLinks(4, true), "fabric": node.SetFabric(4, gpusim.FabricChange{}), "memory": node.SetUsedMemory(4, 1),
	} {
		if !errors.Is(err, gpusim.ErrNoGPU) {
			t.Errorf("%s: %v, want ErrNoGPU", name, err)
		}
	}
	if err := node.SetFabric(0, gpusim.FabricChange{State: "completed"}); err == nil {
		t.Error("a T4 registered with a fabric")
	}
}

package process_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// published waits until exactly those GPUs are.
func published(t testing.TB, b *process.Bed, gpus ...int) {
	t.Helper()
	var wanted []string
	for _, i := range gpus {
		wanted = append(wanted, b.Device(i))
	}
	b.Eventually(fmt.Sprintf("publication of %v", gpus), func() error {
		if diff := cmp.Diff(wanted, slices.Sorted(slices.Values(names(pool(t, b))))); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}

func domains(devices []resourceapi.Device) map[string]string {
	all := map[string]string{}
	for _, d := range devices {
		all[d.Name] = text(d, "nvlinkDomain")
	}
	return all
}

// A GPU that is lost is tainted, alone, and comes back when it is well. The domains of the others
// stay, and what was prepared on it can be unprepared.
func TestGPULostAndHealed(t *testing.T) {
	t.Parallel()
	b := process.New(t, "two-islands")
	p := b.Start(process.Flag("rescan-interval", "1s"), process.Flag("health-hold-down", "1s"))
	p.WaitReady()
	before := domains(pool(t, b))
	claim := b.Allocated("claim", []int{2})
	prepare(t, b, claim, 2)
	must(t, b.Node.LoseGPU(2))
	tainted(t, b, map[int][]string{2: {"gpu-lost=:NoSchedule"}})
	published(t, b, all(8)...)
	event(t, b, "GPUUnusable", b.Node.Spec().GPUs[2].PCI.String())
	event(t, b, "DeviceSick", b.Device(2))
	want := maps.Clone(before)
	want[b.Device(2)] = ""
	// The error may be told before the look that misses the links, and be over before the one
	// that finds them again.
	inDomains := func(what string, want map[string]string) {
		t.Helper()
		b.Eventually(what, func() error {
			if diff := cmp.Diff(want, domains(pool(t, b))); diff != "" {
				return fmt.Errorf("domains (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	inDomains("the domain goes from the lost GPU alone", want)
	_, body, err := p.Get("/readyz")
	must(t, err)
	if !strings.Contains(body, "[!] GPU driver: GPU "+b.Node.Spec().GPUs[2].PCI.String()) {
		t.Errorf("readiness does not tell: %s", body)
	}
	p.WaitReady()
	unprepare(t, b, claim)
	refused(t, b, b.Allocated("late", []int{2}), `device "`+b.Device(2)+`" is not in pool`)
	must(t, b.Node.HealGPU(2))
	tainted(t, b, nil)
	inDomains("the domain comes back", before)
	prepare(t, b, claim, 2)
	unprepare(t, b, claim)
	clean(t, b)
}

// A board that is taken out and put back, without a restart of the plugin.
func TestGPUUnpluggedAndPlugged(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	must(t, b.Node.RemoveGPU(1))
	published(t, b, 0, 2, 3)
	must(t, b.Node.AddGPU(1))
	published(t, b, all(4)...)
	claim := b.Allocated("claim", []int{1})
	prepare(t, b, claim, 1)
	unprepare(t, b, claim)
	if !p.Running() {
		t.Error("the plugin ended")
	}
}

// A node without a GPU driver is ready with an empty pool and unprepares. The GPUs appear with
// the driver, without a restart.
func TestDriverRemovedAndRestored(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(process.Flag("rescan-interval", "1s"))
	first, second := b.Allocated("first", []int{0}), b.Allocated("second", []int{1})
	prepare(t, b, first, 0)
	prepare(t, b, second, 1)
	published(t, b, all(8)...)
	removeDriver(t, b)
	published(t, b)
	unprepare(t, b, first)
	p.Kill()

	p = b.Start(process.Flag("rescan-interval", "1s"))
	unprepare(t, b, second)
	clean(t, b)
	p.WaitReady()
	_, body, err := p.Get("/readyz")
	must(t, err)
	if len(lines(body, "[!] GPU driver")) != 1 {
		t.Errorf("readiness does not tell of the driver: %s", body)
	}
	metric(t, b, p, "gpu_dra_gpu_driver_up 0")
	event(t, b, "GPUDriverMissing", "")
	if _, err := b.Prepare(first); err == nil {
		t.Error("a claim was prepared without a driver")
	}
	must(t, b.Node.RestoreDriver())
	must(t, b.Node.ClearFaults())
	published(t, b, all(8)...)
	prepare(t, b, first, 0)
	unprepare(t, b, first)
	clean(t, b)
}

// removeDriver uninstalls the driver; its library ends the sessions that are open.
func removeDriver(t *testing.T, b *process.Bed) {
	const uninitialized = 1 // NVML_ERROR_UNINITIALIZED
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetCount", GPU: gpusim.AnyGPU, Code: uninitialized, Count: gpusim.Forever}))
	must(t, b.Node.RemoveDriver())
}

// A driver that another version takes the place of, under the running plugin: a process is bound
// to a library for good, so it starts itself anew, as the same container.
func TestDriverUpdated(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	b := process.NewOn(t, node)
	p := b.Start(process.Flag("rescan-interval", "1s"))
	claim := b.Allocated("claim", []int{1})
	prepare(t, b, claim, 1)
	published(t, b, all(4)...)
	removeDriver(t, b)
	published(t, b)
	file, err := nodefile.Preset("t4-4")
	must(t, err)
	b.Node, err = gpusim.Create(t.Context(), node.Dir(), file, gpusim.WithFile(func(f *nodefile.File) { f.Driver.Version = "590.44.01" }))
	must(t, err)
	published(t, b, all(4)...)
	for _, d := range pool(t, b) {
		if v := d.Attributes["driverVersion"].VersionValue; v == nil || *v != "590.44.1" {
			t.Errorf("%s is published with driver version %v", d.Name, v)
		}
	}
	if !p.Running() {
		t.Error("the process ended")
	}
	p.WaitReady()
	p.WaitRegistered()
	prepare(t, b, claim, 1)
	unprepare(t, b, claim)
	clean(t, b)
}

// minors are the numbers of the GPUs' device nodes.
func minors(b *process.Bed) (all []uint32) {
	for _, g := range b.Node.Spec().GPUs {
		all = append(all, g.Minor)
	}
	return all
}

// After a reboot minors are permuted and the CDI directory is empty: the claims get the same
// boards again, by the nodes that are theirs now.
func TestReboot(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start()
	var claims []kubelet.Claim
	for i := range 8 {
		claims = append(claims, b.Allocated(fmt.Sprintf("c%d", i), []int{i}))
		prepare(t, b, claims[i], i)
	}
	for seed := range uint64(3) {
		before := minors(b)
		p.Kill()
		must(t, b.Node.Reboot(seed+1))
		if cmp.Equal(before, minors(b)) {
			t.Fatal("the reboot did not permute the minors")
		}
		specs, err := filepath.Glob(filepath.Join(b.CDIDir(), "*"))
		must(t, err)
		for _, s := range specs {
			must(t, os.Remove(s))
		}
		p = b.Start(process.Flag("holder-wait", "1ms"))
		refused(t, b, b.Allocated("thief", []int{6}), "default/c6")
		for i, c := range claims {
			prepare(t, b, c, i)
		}
	}
	unprepare(t, b, claims...)
	clean(t, b)
}

// A board that was swapped is not the one that the claim was prepared on.
func TestSwappedBoard(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	b := process.NewOn(t, node)
	p := b.Start()
	claim := b.Allocated("claim", []int{2})
	prepare(t, b, claim, 2)
	was := node.UUIDs()[2]
	p.Kill()
	file, err := nodefile.Preset("t4-4")
	must(t, err)
	b.Node, err = gpusim.Create(t.Context(), node.Dir(), file, gpusim.WithSeed("another board"))
	must(t, err)
	b.Start()
	refused(t, b, claim, was, b.Node.UUIDs()[2], "was replaced")
	unprepare(t, b, claim)
	prepare(t, b, claim, 2)
	unprepare(t, b, claim)
	clean(t, b)
}

// A device node that is missing on the host is an error that says so, and the next try works
// when it is there.
func TestMissingNode(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	claim := b.Allocated("claim", []int{3})
	node := filepath.Join(b.Node.DevRoot(), "dev", fmt.Sprintf("nvidia%d", b.Node.Spec().GPUs[3].Minor))
	aside := node + ".aside"
	must(t, os.Rename(node, aside))
	refused(t, b, claim, node, "nvidia-modprobe")
	clean(t, b)
	must(t, os.Rename(aside, node))
	prepare(t, b, claim, 3)
	unprepare(t, b, claim)
	clean(t, b)
}

// A GPU driver that takes long or hangs keeps nobody from registering and unpreparing.
func TestSlowHardware(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	claim := b.Allocated("claim", []int{0})
	prepare(t, b, claim, 0)
	p.Kill()
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlInit_v2", GPU: gpusim.AnyGPU, Hang: true, Count: gpusim.Forever}))
	p = b.Start(process.Flag("rescan-interval", "1s"))
	t.Logf("registered after %s", time.Since(p.Started))
	unprepare(t, b, claim)
	clean(t, b)
	must(t, b.Node.ClearFaults())
	published(t, b, all(4)...)
	prepare(t, b, claim, 0)
	unprepare(t, b, claim)
}

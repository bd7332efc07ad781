package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/process"
)

// counted gives the calls of a function about a GPU from now on.
func counted(t testing.TB, b *process.Bed, gpu int, function string) func() int64 {
	t.Helper()
	count, err := b.Node.CountCalls(gpu, function)
	must(t, err)
	return func() int64 {
		n, err := count()
		must(t, err)
		return n
	}
}

// laidOut is a layout of all GPUs, which is what changes them most.
func laidOut(t testing.TB) []process.Setting {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layouts.yaml")
	must(t, os.WriteFile(path, []byte("version: v1\nmig-configs:\n  small:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 2}}\n"), 0o600))
	return []process.Setting{
		process.Flag("mig-devices", "on-demand"), process.Flag("mig-layout-file", path), process.Flag("mig-layout", "small"),
		process.Flag("rescan-interval", "1s"), process.Flag("health-interval", "1s"), process.Flag("reconcile-interval", "1s"), lasting(),
	}
}

// Excluded GPUs are asked for nothing but who they are while the others are laid out, watched, read
// and handed out. What befalls them is no business of the plugin's.
func TestExcludedGPUsAreLeftAlone(t *testing.T) {
	t.Parallel()
	b := process.New(t, "mixed")
	spec := b.Node.Spec().GPUs
	const byUUID, byAddress, byProduct = 1, 2, 4
	excluded := process.Flag("exclude-gpus", fmt.Sprintf("[{uuids: [%s]}, {nodes: [node-*], pciAddresses: [%q]}, {products: ['*t4*']}, {nodes: [other]}]",
		spec[byUUID].UUID, spec[byAddress].PCI))
	theirs := []int{byUUID, byAddress, byProduct}
	all, told := map[int]func() int64{}, map[int][]func() int64{}
	for _, gpu := range theirs {
		all[gpu] = counted(t, b, gpu, gpusim.AnyFunction)
		for _, name := range []string{"nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"} {
			told[gpu] = append(told[gpu], counted(t, b, gpu, name))
		}
	}
	// Ampere's mode is not switched on without a reset.
	must(t, b.Node.SetMIGMode(0, true))
	read := counted(t, b, 3, "nvmlDeviceGetTemperature")
	p := b.Start(append(laidOut(t), excluded)...)
	p.WaitReady()
	b.Eventually("partitions of the layout", func() error {
		if got := slices.Sorted(slices.Values(names(pool(t, b)))); len(got) != 3 || !slices.Contains(got, b.Device(3)) || !strings.HasPrefix(got[0], b.Device(0)+"-mig-1g-10gb-") {
			return fmt.Errorf("published are %v", got)
		}
		return nil
	})
	claim := b.Allocated("claim", []int{3}, interval("Long"))
	prepare(t, b, claim, 3)
	refused(t, b, b.Allocated("excluded", []int{byAddress}), b.Device(byAddress), "is not in pool")
	must(t, b.Node.InjectXID(byUUID, gpusim.XID{Code: 79}))
	must(t, b.Node.LoseGPU(byAddress))
	must(t, b.Node.SetRecoveryAction(3, 1))
	tainted(t, b, map[int][]string{3: {"recovery-action=reset:NoSchedule"}})
	metric(t, b, p, "gpu_dra_unusable_gpus 0")
	before := read()
	b.Eventually("readings of what is served", func() error {
		if n := read(); n < before+3 {
			return fmt.Errorf("%d", n-before)
		}
		return nil
	})
	unprepare(t, b, claim)
	if _, body, err := p.Get("/readyz"); err != nil || strings.Contains(body, "GPU driver:") {
		t.Errorf("%v\n%s", err, body)
	}
	for _, gpu := range theirs {
		sum := int64(0)
		for _, n := range told[gpu] {
			sum += n()
		}
		// Where the address tells, nobody asks.
		if n := all[gpu](); n != sum || (n == 0) != (gpu == byAddress) {
			t.Errorf("GPU %d: %d calls, %d of them about who it is", gpu, n, sum)
		}
	}
	clean(t, b)
}

// Claims of GPUs that were excluded while they ran end as ever, and what was set for them is undone.
// Meanwhile neither are those GPUs published nor is what befalls them told.
func TestClaimsOfGPUsThatAreExcludedLater(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	onDemand := process.Flag("mig-devices", "on-demand")
	p := b.Start(onDemand, process.Flag("health-interval", "1s"))
	slice := b.Allocated("slice", []int{2}, interval("Long"))
	prepare(t, b, slice, 2)
	part := b.Allocated("part", []int{3}, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0].Device = b.Device(3) + "-mig-1g-10gb-0"
	})
	if _, err := b.Prepare(part); err != nil {
		t.Fatal(err)
	}
	kept := b.Allocated("kept", []int{4})
	prepare(t, b, kept, 4)
	// Known to be ill, so that what an earlier run knew is there.
	must(t, b.Node.SetRecoveryAction(2, 1))
	b.Eventually("the taint", func() error {
		if len(taintsNow(t, b)[b.Device(2)]) == 0 {
			return fmt.Errorf("%v", taintsNow(t, b))
		}
		return nil
	})
	p.Kill()
	sliced(t, b, 2, gpusim.TimeSliceLong)

	p = b.Start(onDemand, lasting(), process.Flag("reconcile-interval", "1s"),
		process.Flag("exclude-gpus", fmt.Sprintf("[{uuids: [%s]}, {pciAddresses: [%q]}]", b.Node.Spec().GPUs[2].UUID, b.Node.Spec().GPUs[3].PCI)))
	p.WaitReady()
	looked(t, b, 3)
	for _, d := range pool(t, b) {
		if strings.HasPrefix(d.Name, b.Device(2)) || strings.HasPrefix(d.Name, b.Device(3)) {
			t.Errorf("%s is published", d.Name)
		}
	}
	refused(t, b, b.Allocated("late", []int{2}), "is not in pool")
	unprepare(t, b, slice, part)
	sliced(t, b, 2, gpusim.TimeSliceDefault)
	left, err := b.Node.MIGInstances(3)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("partitions are left: %+v", left)
	}
	prepare(t, b, kept, 4)
	unprepare(t, b, kept)
	clean(t, b)
}

// A node of which an include list names no GPU has an empty pool and is ready.
func TestNothingIsIncluded(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("include-gpus", "[{products: [NVIDIA H100*]}]"))
	p.WaitReady()
	devices(t, b, 0)
	metric(t, b, p, "gpu_dra_unusable_gpus 0")
	p.Terminate()
	b.Start(process.Flag("include-gpus", "[{nodes: [other], products: [NVIDIA H100*]}]")).WaitReady()
	devices(t, b, 4)
}

// A mistake in a list ends the plugin with the flag, the entry, the value and what is allowed.
func TestBadSelection(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Run(process.Flag("exclude-gpus", "[{pciAddresses: ['1a:00']}]"))
	if err := p.WaitExit(); err == nil {
		t.Error("it ended well")
	}
	for _, word := range []string{"--exclude-gpus", "entry 0", "pciAddresses", "1a:00", "0000:1a:00.0"} {
		if !strings.Contains(p.Log(), word) {
			t.Errorf("the log does not say %q:\n%s", word, p.Log())
		}
	}
	if diff := cmp.Diff(0, len(sliceWrites(b))); diff != "" {
		t.Error(diff)
	}
}

package process_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// taintsNow are the taints of the published devices that have any, as "key=value:effect" without
// the driver's name.
func taintsNow(t testing.TB, b *process.Bed) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, d := range pool(t, b) {
		for _, taint := range d.Taints {
			out[d.Name] = append(out[d.Name], fmt.Sprintf("%s=%s:%s", strings.TrimPrefix(taint.Key, process.Driver+"/"), taint.Value, taint.Effect))
		}
	}
	return out
}

// tainted waits until exactly those GPUs have exactly those taints.
func tainted(t testing.TB, b *process.Bed, want map[int][]string) {
	t.Helper()
	wanted := map[string][]string{}
	for i, taints := range want {
		wanted[b.Device(i)] = taints
	}
	b.Eventually("taints", func() error {
		if diff := cmp.Diff(wanted, taintsNow(t, b)); diff != "" {
			return fmt.Errorf("taints (-want +got):\n%s", diff)
		}
		return nil
	})
}

// inform waits until the kubelet knows that of a device, by its number.
func inform(t testing.TB, b *process.Bed, device string, want kubelet.Health, words ...string) {
	t.Helper()
	id := kubelet.DeviceID{Pool: process.NodeName, Device: device}
	b.Eventually("the kubelet's knowledge of "+device, func() error {
		got := b.Kubelet.Health(process.Driver)[id]
		for _, w := range words {
			if !strings.Contains(got.Message, w) {
				return fmt.Errorf("%s: the message does not say %q: %s", got.Health, w, got.Message)
			}
		}
		if got.Health != want {
			return fmt.Errorf("%s: %s", got.Health, got.Message)
		}
		return nil
	})
}

// lasting keeps faults for as long as the test, held for a moment.
func lasting() process.Setting { return process.Flag("health-hold-down", "1h") }

func held() process.Setting { return process.Flag("health-hold-down", "1s") }

// What the driver reports shows in taints, in the kubelet and in Events, and goes when the GPU is
// well. A harmless error after a grave one changes nothing of that.
func TestXID(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(held(), process.Flag("health-interval", "1s"))
	p.WaitReady()
	inform(t, b, b.Device(1), kubelet.Healthy)
	must(t, b.Node.SetRecoveryAction(1, 1))
	must(t, b.Node.InjectXID(1, gpusim.XID{Code: 79}))
	sick := []string{"recovery-action=reset:NoSchedule", "xid=79:NoSchedule"}
	tainted(t, b, map[int][]string{1: sick})
	inform(t, b, b.Device(1), kubelet.Unhealthy, "XID 79", "fallen off", "Drain", "reset")
	inform(t, b, b.Device(0), kubelet.Healthy)
	event(t, b, "GPUSick", "XID 79")

	must(t, b.Node.InjectXID(1, gpusim.XID{Code: 13}))
	must(t, b.Node.InjectXID(2, gpusim.XID{Code: 13}))
	tainted(t, b, map[int][]string{1: sick, 2: {"xid=13:None"}})
	inform(t, b, b.Device(1), kubelet.Unhealthy, "XID 79", "XID 13")
	inform(t, b, b.Device(2), kubelet.Healthy, "XID 13")

	// A restart keeps it, and writes nothing.
	for _, end := range []func(){p.Terminate, func() { p.Kill() }} {
		end()
		b.API.ResetRequests()
		p = b.Start(held(), process.Flag("health-interval", "1s"))
		p.WaitReady()
		looked(t, b, 4)
		if writes := sliceWrites(b); len(writes) > 0 {
			t.Errorf("a restart wrote slices: %+v", writes)
		}
		if got := taintsNow(t, b)[b.Device(1)]; !slices.Equal(got, sick) {
			t.Errorf("after a restart: %v", got)
		}
	}
	must(t, b.Node.SetRecoveryAction(1, 0))
	tainted(t, b, map[int][]string{1: {"xid=13:None"}, 2: {"xid=13:None"}})
	inform(t, b, b.Device(1), kubelet.Healthy)
	event(t, b, "GPUWell", b.Node.Spec().GPUs[1].PCI.String())
}

// A burst costs two writes at most, each of one slice, and what the API server refuses is tried
// again until it is taken.
func TestBurstOfErrors(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(process.Flag("mig-devices", "on-demand"), lasting())
	p.WaitReady()
	looked(t, b, 3)
	b.API.ResetRequests()
	for i := range 50 {
		must(t, b.Node.InjectXID(3, gpusim.XID{Code: uint64(63 + i%2)}))
	}
	taintedWhole(t, b, 3, "xid=64:NoSchedule")
	lookedAgain(t, b, 4)
	writes := sliceWrites(b)
	slicesWritten := map[string]bool{}
	for _, w := range writes {
		slicesWritten[w.Name] = true
	}
	if len(writes) > 2 || len(slicesWritten) != 1 {
		t.Errorf("%d writes of %d slices", len(writes), len(slicesWritten))
	}
	b.API.Inject(kubeapi.Fault{Match: kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true}, Times: 2, Code: 500})
	must(t, b.Node.InjectXID(5, gpusim.XID{Code: 95}))
	b.Eventually("the taint that was refused", func() error {
		if got := taintsNow(t, b)[b.Device(5)]; !slices.Contains(got, "xid=95:NoSchedule") {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// taintedWhole waits until a GPU and all its partitions have that taint, and nothing else has any.
func taintedWhole(t testing.TB, b *process.Bed, gpu int, taint string) {
	t.Helper()
	b.Eventually("taints of a GPU and its partitions", func() error {
		has := taintsNow(t, b)
		for _, d := range pool(t, b) {
			want := strings.HasPrefix(d.Name, b.Device(gpu))
			if got := has[d.Name]; want != slices.Equal(got, []string{taint}) || !want && len(got) > 0 {
				return fmt.Errorf("%s has %v", d.Name, got)
			}
		}
		return nil
	})
}

// An error of one partition is nothing to the others, and ends with it.
func TestXIDOfAPartition(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	must(t, b.Node.SetMIGMode(0, true))
	ill, err := b.Node.CreateMIG(0, "1g.10gb", 0)
	must(t, err)
	_, err = b.Node.CreateMIG(0, "3g.40gb", 4)
	must(t, err)
	p := b.Start(process.Flag("mig-devices", "on-demand"), process.Flag("rescan-interval", "1s"), lasting())
	p.WaitReady()
	must(t, b.Node.InjectXID(0, gpusim.XID{Code: 94, GPUInstance: new(uint32(ill.ID))}))
	part := b.Device(0) + "-mig-1g-10gb-0"
	b.Eventually("the taint of a partition", func() error {
		if diff := cmp.Diff(map[string][]string{part: {"xid=94:NoSchedule"}}, taintsNow(t, b)); diff != "" {
			return fmt.Errorf("taints (-want +got):\n%s", diff)
		}
		return nil
	})
	inform(t, b, part, kubelet.Unhealthy, "XID 94")
	inform(t, b, b.Device(0)+"-mig-3g-40gb-4", kubelet.Healthy)
	must(t, b.Node.DestroyMIG(0, ill.ID))
	tainted(t, b, nil)
}

// A fabric that is late at boot and then half broken, and links that go down, cost a GPU its NVLink domain
// for so long, and are told in a taint that keeps nobody away.
func TestDomainsFollowFabricAndLinks(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	for i := range 8 {
		must(t, b.Node.SetFabric(i, gpusim.FabricChange{State: "inProgress"}))
	}
	p := b.Start(held(), process.Flag("rescan-interval", "1s"), process.Flag("health-interval", "1s"))
	p.WaitReady()
	with := func(want int) {
		t.Helper()
		b.Eventually("NVLink domains", func() error {
			if n := len(domainsNow(t, b)); n != want {
				return fmt.Errorf("%d GPUs have one, want %d", n, want)
			}
			return nil
		})
	}
	with(0)
	for i := range 8 {
		must(t, b.Node.SetFabric(i, gpusim.FabricChange{State: "completed"}))
	}
	with(8)
	domains := domainsNow(t, b)
	noted := func(gpu int, taint string) {
		t.Helper()
		b.Eventually("the taint "+taint, func() error {
			if got := taintsNow(t, b)[b.Device(gpu)]; !slices.Contains(got, taint) {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	must(t, b.Node.SetFabric(6, gpusim.FabricChange{Status: new(uint32(999))}))
	with(7)
	noted(6, "fabric=unhealthy:None")
	must(t, b.Node.SetFabric(6, gpusim.FabricChange{Status: new(uint32(0))}))
	with(8)
	must(t, b.Node.SetAllLinks(5, false))
	with(7)
	noted(5, "nvlink=down:None")
	must(t, b.Node.SetAllLinks(5, true))
	with(8)
	if diff := cmp.Diff(domains, domainsNow(t, b)); diff != "" {
		t.Errorf("domains that returned are others (-before +after):\n%s", diff)
	}
}

// domainsNow are the published NVLink domains by device.
func domainsNow(t testing.TB, b *process.Bed) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, d := range pool(t, b) {
		if domain := text(d, "nvlinkDomain"); domain != "" {
			out[d.Name] = domain
		}
	}
	return out
}

// 112 devices, and a fault of one GPU is one write of one slice.
func TestOneFaultIsOneSlice(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(process.Flag("mig-devices", "on-demand"), lasting())
	p.WaitReady()
	if n := len(pool(t, b)); n < 112 {
		t.Fatalf("%d devices", n)
	}
	looked(t, b, 3)
	b.API.ResetRequests()
	begin := time.Now()
	must(t, b.Node.InjectXID(4, gpusim.XID{Code: 119}))
	taintedWhole(t, b, 4, "xid=119:NoSchedule")
	t.Logf("seen %v after the error", time.Since(begin))
	lookedAgain(t, b, 4)
	if writes := sliceWrites(b); len(writes) != 1 {
		t.Errorf("%d writes: %+v", len(writes), writes)
	}
}

package mig_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

func TestMain(m *testing.M) {
	tracer.Main()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "plugin")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = process.Build(context.Background(), dir, "-race")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// class is the DeviceClass of partitions.
const class = "mig.nvidia.com"

// bed is a node whose plugin makes partitions.
type bed struct {
	*process.Bed
	*testing.T
}

func newBed(t *testing.T, preset string, options ...gpusim.Option) bed {
	t.Helper()
	b := process.New(t, preset, options...)
	must(t, b.API.Put(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
			"device.driver == %q && device.attributes[%q].?type.orValue(\"\") == \"mig\"", process.Driver, process.Driver)}}},
	}}))
	return bed{b, t}
}

// start runs the plugin with partitions on, and waits for its slices.
func (b bed) start(settings ...process.Setting) *process.Plugin {
	b.T.Helper()
	p := b.Start(append([]process.Setting{process.Flag("mig-devices", "on-demand"), process.Flag("rescan-interval", "1s")}, settings...)...)
	p.WaitReady()
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// published gives the slices in their order.
func (b bed) published() []resourceapi.ResourceSlice {
	b.T.Helper()
	list, err := b.Client.ResourceV1().ResourceSlices().List(b.T.Context(), metav1.ListOptions{})
	must(b.T, err)
	slices.SortFunc(list.Items, func(x, y resourceapi.ResourceSlice) int { return strings.Compare(x.Name, y.Name) })
	return list.Items
}

// names are the published devices' of one GPU, without the GPU's.
func (b bed) names(gpu int) []string {
	b.T.Helper()
	var out []string
	for _, s := range b.published() {
		for _, d := range s.Spec.Devices {
			if rest, ok := strings.CutPrefix(d.Name, b.Device(gpu)); ok {
				out = append(out, strings.TrimPrefix(rest, "-mig-"))
			}
		}
	}
	return out
}

// whole waits until the pool is: the scheduler takes nothing of one that is half rewritten.
func (b bed) whole() {
	b.T.Helper()
	b.Eventually("a whole pool", func() error { return complete(b.published()) })
}

// looked waits until the plugin has looked n times more at the GPUs: what it would write because
// of what was there before comes before the last of these looks. n is at least 3, since the first
// may have begun already.
func (b bed) looked(p *process.Plugin, n int) {
	b.T.Helper()
	last := b.scans(p) + n
	b.Eventually("looks at the GPUs", func() error {
		if have := b.scans(p); have < last {
			return fmt.Errorf("%d of %d", have, last)
		}
		return nil
	})
}

// scans is how often the plugin has looked at the GPUs.
func (b bed) scans(p *process.Plugin) (n int) {
	b.T.Helper()
	_, text, err := p.Get("/metrics")
	must(b.T, err)
	const series = "\ngpu_dra_scan_duration_seconds_count "
	_, rest, _ := strings.Cut(text, series)
	_, err = fmt.Sscanln(rest, &n)
	must(b.T, err)
	return n
}

// wants makes a claim for count partitions of a profile of one GPU, and has the scheduler
// allocate it.
func (b bed) wants(name, profile string, count int64) (kubelet.Claim, []string) {
	b.T.Helper()
	b.whole()
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "parts", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes[%q].profile == %q", process.Driver, profile),
				}}},
			}}},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(process.Driver + "/parentUUID"))}},
		}},
	}
	must(b.T, b.API.Put(claim))
	allocated, err := b.Scheduler.Allocate(b.T.Context(), "default", name, process.NodeName, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)})
	must(b.T, err)
	var devices []string
	for _, r := range allocated.Status.Allocation.Devices.Results {
		devices = append(devices, r.Device)
	}
	return kubelet.ClaimOf(allocated), devices
}

// gets makes a claim that was allocated those devices.
func (b bed) gets(name string, devices ...string) kubelet.Claim {
	b.T.Helper()
	return b.Allocated(name, nil, func(c *resourceapi.ResourceClaim) {
		c.UID = types.UID(name + "-uid")
		for _, d := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: process.Request, Driver: process.Driver, Pool: process.NodeName, Device: d})
		}
	})
}

func (b bed) prepare(c kubelet.Claim) []kubelet.Device {
	b.T.Helper()
	answer, err := b.Prepare(c)
	if err != nil {
		b.T.Fatalf("prepare of claim %s: %v", c.Name, err)
	}
	return answer
}

func (b bed) unprepare(c kubelet.Claim) {
	b.T.Helper()
	if err := b.Unprepare(c); err != nil {
		b.T.Fatalf("unprepare of claim %s: %v", c.Name, err)
	}
}

// partitions are those of a GPU as the simulated driver has them, "1g.10gb:6".
func (b bed) partitions(gpu int) []string {
	b.T.Helper()
	found, err := b.Node.MIGInstances(gpu)
	must(b.T, err)
	var out []string
	for _, i := range found {
		text := fmt.Sprintf("%s:%d", i.Profile, i.Start)
		if len(i.Compute) != 1 {
			text += fmt.Sprintf(" with %d compute instances", len(i.Compute))
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// mode tells whether a GPU's MIG mode is on.
func (b bed) mode(gpu int) bool {
	b.T.Helper()
	state, err := b.Node.State()
	must(b.T, err)
	return state.GPUs[gpu].MIG.CurrentMode != 0
}

// nodes are the device nodes that containers of a claim get, by device.
func (b bed) nodes(c kubelet.Claim) map[string][]string {
	b.T.Helper()
	spec, err := b.Spec(c)
	must(b.T, err)
	out := map[string][]string{}
	for _, d := range spec.Devices {
		parts := strings.Split(d.Name, "_")
		for _, n := range d.ContainerEdits.DeviceNodes {
			out[parts[2]] = append(out[parts[2]], strings.TrimPrefix(n.Path, "/dev/"))
		}
	}
	return out
}

// untouched fails when something is left of claims or of partitions.
func (b bed) untouched() {
	b.T.Helper()
	for _, left := range b.Leftovers() {
		// A killed process may leave a file that it was writing, for a later start to sweep.
		if !strings.HasPrefix(filepath.Base(left), ".") {
			b.T.Errorf("left behind: %s", left)
		}
	}
	for i := range b.Node.GPUCount() {
		if found := b.partitions(i); len(found) > 0 || b.mode(i) {
			b.T.Errorf("GPU %d has partitions %v, mode on %t", i, found, b.mode(i))
		}
	}
	if entries, err := filepath.Glob(b.DataDir() + "/mig/*.json"); err != nil || len(entries) > 0 {
		b.T.Errorf("the ledger still has %v, %v", entries, err)
	}
}

// writes are the plugin's changes of slices.
func (b bed) writes() int {
	return len(b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true}))
}

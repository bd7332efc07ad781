package view_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/view"
)

func text(t *testing.T, r output.Result, wide bool) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b, wide); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// has checks that lines with all these words are there.
func has(t *testing.T, got string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		found := false
		for _, l := range strings.Split(got, "\n") {
			found = found || strings.Contains(strings.Join(strings.Fields(l), " "), line)
		}
		if !found {
			t.Errorf("no line has %q:\n%s", line, got)
		}
	}
}

// The machine of the tests: two islands of four; two GPUs in use, one tainted, one looked at.
func busy(t *testing.T) *state.State {
	t.Helper()
	s := Machines(t, "two-islands", 1, false)
	gpus := Names(s, "node-0", "gpu")
	Take(s, "train", gpus[0], gpus[1])
	Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, gpus[2])
	Look(s, "monitor", gpus[3])
	return s
}

func TestTotals(t *testing.T) {
	got := view.Show(busy(t), Driver, nil).Totals
	want := view.Totals{Nodes: 1, GPUs: 8, Free: 5, Tainted: 1, Domains: []view.Fit{{Size: 8}, {Size: 4, Whole: 1, Claims: 1}, {Size: 2, Whole: 0, Claims: 2}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

func TestTotalsOfPartitions(t *testing.T) {
	s := Machines(t, "hgx-h100-8", 1, true)
	gpus := Names(s, "node-0", "gpu")
	for i, gpu := range gpus {
		Take(s, "p"+string(rune('0'+i)), gpu+"-mig-1g-10gb-0")
	}
	got := view.Show(s, Driver, nil).Totals
	if got.Free != 0 || got.Partitions != 8 || got.Largest == nil || got.Largest.Profile != "3g.40gb" {
		t.Errorf("totals %+v", got)
	}
	if got.Domains[0].Claims != 0 || got.Domains[0].Whole != 0 {
		t.Errorf("domains %+v", got.Domains)
	}
}

// What fits is what the free members of each domain give, whoever holds the others.
func TestFitsAreCountedByDomain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Machines(t, "two-islands", 1, false)
		free := [2]int{4, 4}
		var taken []string
		for i, gpu := range Names(s, "node-0", "gpu") {
			if rapid.Bool().Draw(rt, gpu) {
				taken = append(taken, gpu)
				free[i/4]--
			}
		}
		Take(s, "somebody", taken...)
		for _, f := range view.Show(s, Driver, nil).Totals.Domains {
			whole := 0
			for _, n := range free {
				if n == f.Size && f.Size == 4 {
					whole++
				}
			}
			if want := free[0]/f.Size + free[1]/f.Size; f.Claims != want || f.Whole != whole {
				rt.Errorf("%v free: %+v", free, f)
			}
		}
	})
}

func TestList(t *testing.T) {
	list := view.Show(busy(t), Driver, nil)
	got := text(t, list, false)
	has(t, got, "NODE DEVICE PRODUCT MEMORY NVLINK DOMAIN STATE OWNER",
		"in use team-a/train → train", "tainted example.com/xid -", "free team-a/monitor → monitor (admin access)", "8 GPUs on 1 node, 5 free, 1 tainted",
		"Claims for 4 GPUs of one NVLink domain that fit now: 1 (whole domains of 4 free: 1)")
	if strings.Contains(got, "NUMA") || !strings.Contains(text(t, list, true), "NUMA") {
		t.Error("NUMA nodes are for wide output alone")
	}
	none := view.Show(&state.State{}, Driver, nil)
	has(t, text(t, none, false), "No GPUs are published.", "0 GPUs on 0 nodes, 0 free")
}

func TestNotesAndFilter(t *testing.T) {
	s := Machines(t, "t4-4", 2, false)
	s.Slices[1].Spec.Pool.ResourceSliceCount = 2
	s.Unread = []state.Unread{{Kind: "Pods", Err: errNo{}}}
	list := view.Show(s, Driver, func(g view.GPU) bool { return g.Node == "node-1" })
	has(t, text(t, list, false), "Note: pool node-1 of driver gpu.nvidia.com is incomplete", "Note: Pods could not be read: no", "4 GPUs on 1 node")
	if other := view.Show(s, "other.example.com", nil); len(other.Items) != 0 {
		t.Errorf("devices of another driver: %v", other.Items)
	}
	if all := view.Show(s, "", nil); len(all.Items) != 8 {
		t.Errorf("all drivers have %d GPUs", len(all.Items))
	}
}

type errNo struct{}

func (errNo) Error() string { return "no" }

func TestTree(t *testing.T) {
	s := Machines(t, "mixed", 1, true)
	var h100 string
	for _, d := range s.Devices() {
		if d.Kind() == "gpu" && d.Text("productName") == "NVIDIA H100 NVL" {
			h100 = d.Pool + "/" + d.Name
		}
	}
	Take(s, "embed", h100+"-mig-1g-12gb-2")
	tree := view.Tree{List: view.Show(s, Driver, nil)}
	got := text(t, tree, false)
	has(t, got, "node-0 5 GPUs, 4 free", "├── NVLink domain", "2 GPUs, 2 free", "└── no NVLink domain 3 GPUs, 2 free",
		"NVIDIA H100 NVL 93.58Gi partitioned", "1g.12gb 10.62Gi in use team-a/embed → embed", "Largest free partition: 3g.47gb")
	if n := strings.Count(got, "-mig-"); n != 1 {
		t.Errorf("%d partitions are shown, want the one in use:\n%s", n, got)
	}
	tree.All = true
	if n := strings.Count(text(t, tree, true), "-mig-"); n < 20 {
		t.Errorf("%d partitions are shown with --all", n)
	}
	has(t, text(t, view.Tree{List: view.Show(&state.State{}, Driver, nil)}, false), "No GPUs are published.")
}

// A domain that lost a member says so.
func TestTreeOfABrokenDomain(t *testing.T) {
	s := Machines(t, "two-islands", 1, false)
	s.Slices[0].Spec.Devices = s.Slices[0].Spec.Devices[1:]
	has(t, text(t, view.Tree{List: view.Show(s, Driver, nil)}, false), "(3 of 4 members) 3 GPUs, 3 free")
}

func TestDescribe(t *testing.T) {
	s := busy(t)
	gpu := view.Show(s, Driver, nil).Items[0]
	for _, name := range []string{gpu.Name, gpu.UUID, gpu.PCI} {
		d, err := view.Describe(s, name)
		if err != nil || len(d.Items) != 1 {
			t.Fatalf("%s: %d devices, %v", name, len(d.Items), err)
		}
		has(t, text(t, d, true), "Name: "+gpu.Name, "State: in use", "team-a/train → train, request gpus", "productName NVIDIA A100-SXM4-80GB", "memory 80Gi")
	}
	node, err := view.Describe(s, "node-0")
	if err != nil || len(node.Items) != 8 {
		t.Errorf("node-0: %d devices, %v", len(node.Items), err)
	}
	has(t, text(t, node, false), "Taints: example.com/xid=79:NoSchedule")
	if _, err := view.Describe(s, "gpu-9"); err == nil || !strings.Contains(err.Error(), "gpu-9") {
		t.Errorf("an unknown name: %v", err)
	}
}

// A device that several claims have shows their number and what each has.
func TestSharedDevice(t *testing.T) {
	s := &state.State{}
	Add(t, s, `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.nvidia.com
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    allowMultipleAllocations: true
    attributes: {type: {string: gpu}, sharingEnforcement: {string: mps}, nvlinkDomain: {string: 5fb4f8a1-6b1c-4d5a-9c2e-1d2a3b4c5d6e.7}}
    capacity: {memory: {value: 512Mi}}
  - name: gpu-1
    allowMultipleAllocations: true
    attributes: {type: {string: gpu}, sharingEnforcement: {string: mps}, nvlinkDomain: {string: 5fb4f8a1-6b1c-4d5a-9c2e-1d2a3b4c5d6e.7}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a, namespace: team-a}
status:
  allocation: {devices: {results: [
    {request: r, driver: gpu.nvidia.com, pool: node-1, device: gpu-0, shareID: 11111111-1111-1111-1111-111111111111, consumedCapacity: {memory: 128Mi}},
    {request: r, driver: gpu.nvidia.com, pool: node-1, device: gpu-0, shareID: 21111111-1111-1111-1111-111111111111, consumedCapacity: {memory: 64Mi}}]}}
`)
	if totals := view.Show(s, Driver, nil).Totals; totals.Free != 0 || totals.Shared != 2 || totals.Domains[2].Claims != 0 {
		t.Errorf("nobody gets a GPU whole that is offered in shares: %+v", totals)
	}
	has(t, text(t, view.Show(s, Driver, nil), false), "gpu-1", "shared by 0", "2 GPUs on 1 node, 0 free, 2 offered in shares")
	has(t, text(t, view.Show(s, Driver, nil), true), "512Mi 5fb4f8a1….7 shared by 2", "mps")
	d, err := view.Describe(s, "gpu-0")
	if err != nil {
		t.Fatal(err)
	}
	has(t, text(t, d, false), "Sharing: mps", "team-a/a, request r, has memory 128Mi", "team-a/a, request r, has memory 64Mi")
}

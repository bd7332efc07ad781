package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

// seen is what matters of a device: whether it is free, why not, and whose it is.
type seen struct {
	Name, Blocked string
	Free          bool
	Owners        []string
	Taints        int
}

func look(devices []state.Device, of func(state.Device) bool) []seen {
	var out []seen
	for _, d := range devices {
		if !of(d) {
			continue
		}
		s := seen{Name: d.ID.String(), Blocked: d.Blocked, Free: d.Free(), Taints: len(d.Spec.Taints)}
		for _, o := range d.Owners {
			s.Owners = append(s.Owners, o.String())
		}
		out = append(out, s)
	}
	return out
}

// What is seen of one node by itself is what is seen of it in the whole cluster, whoever has its devices.
func TestNodeByItself(t *testing.T) {
	machines := map[bool]*state.State{}
	for _, partitions := range []bool{false, true} {
		machines[partitions] = Machines(t, "hgx-h100-8", 2, partitions)
	}
	rapid.Check(t, func(t *rapid.T) {
		// Those with partitions have hundreds of devices: one look in eight is at them.
		partitions := rapid.IntRange(0, 7).Draw(t, "kind") == 7
		s := *machines[partitions]
		for _, node := range s.NodeNames() {
			for _, gpu := range Names(&s, node, "gpu")[:3] {
				switch rapid.IntRange(0, 4).Draw(t, gpu) {
				case 0:
					Take(&s, fmt.Sprintf("whole%d", len(s.Claims)), gpu)
				case 1:
					if partitions {
						Take(&s, fmt.Sprintf("part%d", len(s.Claims)), gpu+"-mig-1g-10gb-0")
					}
				case 2:
					Taint(&s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, gpu)
				case 3:
					Look(&s, fmt.Sprintf("monitor%d", len(s.Claims)), gpu)
				}
			}
		}
		Pending(&s, "waits", "", Request("gpu.nvidia.com", 1))
		all, sorted := s.Devices(), s.ByNode()
		for _, node := range s.NodeNames() {
			of := func(d state.Device) bool { return d.Node == node }
			alone := sorted.State(node)
			if diff := cmp.Diff(look(all, of), look(alone.Devices(), of)); diff != "" {
				t.Fatalf("%s (-in the cluster +by itself):\n%s", node, diff)
			}
			if len(alone.Slices) >= len(s.Slices) || len(alone.Classes) != len(s.Classes) {
				t.Fatalf("%s has %d of %d slices, %d classes", node, len(alone.Slices), len(s.Slices), len(alone.Classes))
			}
		}
	})
}

// Slices that several nodes reach are among those of each, in the order of names.
func TestSlicesOfSeveralNodes(t *testing.T) {
	s := &state.State{}
	for name, node := range map[string]*string{"a": nil, "b": ptr.To("node-1"), "c": nil, "d": ptr.To("node-2"), "e": ptr.To("node-1")} {
		s.Slices = append(s.Slices, &resourceapi.ResourceSlice{})
		slice := s.Slices[len(s.Slices)-1]
		slice.Name, slice.Spec.NodeName, slice.Spec.Driver, slice.Spec.Pool.Name = name, node, Driver, "pool-"+name
	}
	slices.SortFunc(s.Slices, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	for node, want := range map[string][]string{"node-1": {"a", "b", "c", "e"}, "node-2": {"a", "c", "d"}, "node-3": {"a", "c"}} {
		var got []string
		for _, slice := range s.ByNode().State(node).Slices {
			got = append(got, slice.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", node, diff)
		}
	}
}

// A claim with devices of several pools is with each of their nodes, once.
func TestClaimsOfSeveralPools(t *testing.T) {
	s := Machines(t, "t4-4", 3, false)
	Take(s, "wide", Names(s, "node-0", "gpu")[0], Names(s, "node-0", "gpu")[1], Names(s, "node-1", "gpu")[0])
	Pending(s, "waits", "", Request("gpu.nvidia.com", 1))
	sorted := s.ByNode()
	for node, want := range map[string]int{"node-0": 1, "node-1": 1, "node-2": 0, "node-9": 0} {
		if got := sorted.State(node).Claims; len(got) != want {
			t.Errorf("%s has %d claims, want %d", node, len(got), want)
		}
	}
	if n := sorted.Node("node-9"); n.Name != "node-9" || len(n.Labels) > 0 {
		t.Errorf("an unknown node is %+v", n)
	}
}

// Text of every kind of value; names with and without the driver's domain.
func TestValues(t *testing.T) {
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
  - name: d
    attributes:
      text: {string: a}
      number: {int: 7}
      truth: {bool: true}
      version: {version: 1.2.3}
      gpu.nvidia.com/own: {string: mine}
      other.example.com/own: {string: theirs}
      texts: {strings: [a, b]}
      numbers: {ints: [1, 2]}
      nothing: {}
    capacity: {gpu.nvidia.com/memory: {value: 1Gi}, cores: {value: "3"}}
`)
	d := s.Devices()[0]
	for name, want := range map[string]string{
		"text": "a", "number": "7", "truth": "true", "version": "1.2.3", "own": "mine", "gpu.nvidia.com/own": "mine", "other.example.com/own": "theirs",
		"texts": "a,b", "numbers": "1 2", "nothing": "", "absent": "",
	} {
		if got := d.Text(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"memory": "1Gi", "gpu.nvidia.com/memory": "1Gi", "cores": "3", "absent": "0"} {
		if got := d.Capacity(name); got.String() != want {
			t.Errorf("%s is %s, want %s", name, got.String(), want)
		}
	}
	if d.Shared() || d.Kind() != "" || d.ID.String() != "gpu.nvidia.com/node-1/d" {
		t.Errorf("device %s of kind %q, shared: %t", d.ID, d.Kind(), d.Shared())
	}
}

// A rule taints what it selects: by driver, pool and device, each of which may be left open; a rule without a
// selector taints nothing.
func TestRules(t *testing.T) {
	for name, tc := range map[string]struct {
		selector string
		want     int
	}{
		"one device":     {"{driver: gpu.nvidia.com, pool: node-0, device: gpu-0000-21-00-0}", 1},
		"every pool":     {"{driver: gpu.nvidia.com, device: gpu-0000-21-00-0}", 2},
		"a pool":         {"{pool: node-1}", 4},
		"a driver":       {"{driver: gpu.nvidia.com}", 8},
		"everything":     {"{}", 8},
		"another driver": {"{driver: other.example.com}", 0},
		"another device": {"{device: gpu-9}", 0},
		"nothing":        {"null", 0},
	} {
		s := Machines(t, "t4-4", 2, false)
		Add(t, s, "apiVersion: resource.k8s.io/v1\nkind: DeviceTaintRule\nmetadata: {name: r}\nspec: {deviceSelector: "+tc.selector+", taint: {key: a.example.com/b, effect: NoExecute}}\n")
		n, inSlices := 0, 0
		for _, d := range s.Devices() {
			n += len(d.Repelling())
		}
		for _, slice := range s.Tainted() {
			for _, d := range slice.Spec.Devices {
				inSlices += len(d.Taints)
			}
		}
		if n != tc.want || inSlices != tc.want {
			t.Errorf("%s: %d devices are tainted, %d in slices, want %d", name, n, inSlices, tc.want)
		}
	}
}

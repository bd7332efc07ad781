package view_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/view"
)

// cut is a cluster with one GPU that offers its partitions alone, two of which are there in any case, and one
// whose driver names its devices in another way.
func cut(t *testing.T) *state.State {
	t.Helper()
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
  - name: gpu-0000-1b-00-0-mig-1g-10gb-0
    attributes: {type: {string: mig}, profile: {string: 1g.10gb}, uuid: {string: MIG-1}, parentUUID: {string: GPU-1}, resource.kubernetes.io/pciBusID: {string: "0000:1b:00.0"}}
    capacity: {memory: {value: 10Gi}}
  - name: gpu-0000-1b-00-0-mig-2g-20gb-2
    attributes: {type: {string: mig}, profile: {string: 2g.20gb}, uuid: {string: MIG-2}, parentUUID: {string: GPU-1}, resource.kubernetes.io/pciBusID: {string: "0000:1b:00.0"}}
    capacity: {memory: {value: 20Gi}}
  - name: other-part
    attributes: {type: {string: mig}, profile: {string: 1g.5gb}, parentUUID: {string: GPU-2}}
  - {name: odd, attributes: {model: {string: x}}}
`)
	return s
}

// A GPU that offers its partitions alone is called as when it is whole, and found by that name, its UUID and
// its address.
func TestPartitionedGPU(t *testing.T) {
	s := cut(t)
	list := view.Show(s, Driver, nil)
	var names []string
	for _, g := range list.Items {
		names = append(names, g.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"GPU-2", "gpu-0000-1b-00-0", "odd"}, names); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	for name, want := range map[string][]string{
		"gpu-0000-1b-00-0":               {"gpu-0000-1b-00-0-mig-1g-10gb-0", "gpu-0000-1b-00-0-mig-2g-20gb-2"},
		"GPU-1":                          {"gpu-0000-1b-00-0-mig-1g-10gb-0", "gpu-0000-1b-00-0-mig-2g-20gb-2"},
		"0000:1b:00.0":                   {"gpu-0000-1b-00-0-mig-1g-10gb-0", "gpu-0000-1b-00-0-mig-2g-20gb-2"},
		"MIG-2":                          {"gpu-0000-1b-00-0-mig-2g-20gb-2"},
		"gpu-0000-1b-00-0-mig-1g-10gb-0": {"gpu-0000-1b-00-0-mig-1g-10gb-0"},
		"other-part":                     {"other-part"},
		"node-1":                         {"gpu-0000-1b-00-0-mig-1g-10gb-0", "gpu-0000-1b-00-0-mig-2g-20gb-2", "odd"},
	} {
		d, err := view.Describe(s, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, item := range d.Items {
			got = append(got, item.Device.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, name := range []string{"GPU-2", "", "gpu-0000-1b"} {
		if d, err := view.Describe(s, name); err == nil && name != "GPU-2" {
			t.Errorf("%q is %+v", name, d)
		}
	}
}

// The totals count a partition that is free and what is left; a device of an unknown kind counts as a GPU.
func TestTotalsOfACutGPU(t *testing.T) {
	s := cut(t)
	totals := view.Show(s, Driver, nil).Totals
	if totals.GPUs != 3 || totals.Free != 1 || totals.Partitions != 0 || totals.Largest == nil || totals.Largest.Profile != "2g.20gb" {
		t.Errorf("totals %+v", totals)
	}
	Take(s, "a", "node-1/gpu-0000-1b-00-0-mig-2g-20gb-2")
	totals = view.Show(s, Driver, nil).Totals
	if totals.Partitions != 1 || totals.Largest == nil || totals.Largest.Profile != "1g.10gb" {
		t.Errorf("with one in use %+v", totals)
	}
	has(t, text(t, view.Show(s, Driver, nil), false), "node-1 gpu-0000-1b-00-0-mig-2g-20gb-2 2g.20gb 20Gi - in use team-a/a → a")
}

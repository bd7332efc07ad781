package topology_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/topology"
)

// TestPresets has the domains of every machine that the simulator knows, from what the plugin's own scan saw
// there.
func TestPresets(t *testing.T) {
	all8 := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
	fours := [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	want := map[string][][]int{
		"a100-pcie-8":    {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
		"a30-4":          {},
		"dgx-a100-40":    all8,
		"dgx-a100-80":    all8,
		"dgx1-v100":      fours,
		"gb200-nvl72":    {{0, 1, 2, 3}},
		"hgx-b200-8":     all8,
		"hgx-h100-16":    {{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}},
		"hgx-h100-8":     all8,
		"hgx-h200-8":     all8,
		"l40s-8":         {},
		"mixed":          {{0, 1}},
		"rtx-pro-6000-8": {},
		"t4-4":           {},
		"two-islands":    fours,
	}
	got := map[string][][]int{}
	for _, name := range preset.Names() {
		m, err := preset.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := resolve(t, m.Snapshot, topology.Memory{})
		got[name] = groups(a, m.Snapshot)
		for _, g := range m.Snapshot.GPUs {
			domain := a.GPUs[g.PCI].Domain
			if inFabric := g.Fabric.ClusterUUID != ""; inFabric != (domain == g.Fabric.ClusterUUID+".32766") {
				t.Errorf("%s: %s is in the domain %q, its fabric is %+v", name, g.PCI, domain, g.Fabric)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("domains (-want +got):\n%s", diff)
	}
}

package view_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/view"
)

// used is a cluster of two nodes of some kind where some GPUs are in use and some tainted.
func used(t *rapid.T, machines map[string]*state.State) (s *state.State, taken, tainted map[string]bool) {
	kinds := []string{"two-islands", "a100-pcie-8", "mixed"}
	fresh := *machines[rapid.SampledFrom(kinds).Draw(t, "kind")]
	s, taken, tainted = &fresh, map[string]bool{}, map[string]bool{}
	for _, node := range s.NodeNames() {
		for _, gpu := range Names(s, node, "gpu") {
			switch rapid.IntRange(0, 3).Draw(t, gpu) {
			case 0:
				Take(s, fmt.Sprintf("c%d", len(s.Claims)), gpu)
				taken[gpu] = true
			case 1:
				Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, gpu)
				tainted[gpu] = true
			}
		}
	}
	return s, taken, tainted
}

// Each device is shown once, with its owner, and the totals add up.
func TestEveryDeviceIsShownOnce(t *testing.T) {
	machines := map[string]*state.State{}
	for _, kind := range []string{"two-islands", "a100-pcie-8", "mixed"} {
		machines[kind] = Machines(t, kind, 2, false)
	}
	rapid.Check(t, func(t *rapid.T) {
		s, taken, tainted := used(t, machines)
		list := view.Show(s, Driver, nil)
		seen := map[string]bool{}
		for _, g := range list.Items {
			name := g.Node + "/" + g.Name
			if seen[name] || g.Whole == nil {
				t.Fatalf("%s is shown twice, or not whole", name)
			}
			seen[name] = true
			if (len(g.Whole.Owners) == 1) != taken[name] || (len(g.Whole.Taints) == 1) != tainted[name] {
				t.Fatalf("%s has the owners %v and the taints %v", name, g.Whole.Owners, g.Whole.Taints)
			}
			if free := !taken[name] && !tainted[name]; g.Whole.Free != free {
				t.Fatalf("%s is free: %t, want %t", name, g.Whole.Free, free)
			}
		}
		if len(seen) != len(s.Devices()) {
			t.Fatalf("%d of %d devices are shown", len(seen), len(s.Devices()))
		}
		if total := list.Totals; total.GPUs != len(seen) || total.Free != len(seen)-len(taken)-len(tainted) || total.Tainted != len(tainted) || total.Nodes != 2 {
			t.Fatalf("totals %+v of %d GPUs, %d taken, %d tainted", total, len(seen), len(taken), len(tainted))
		}
	})
}

// The number of claims for GPUs of one NVLink domain that fit is the number that the scheduler's
// allocator gives devices to, one after the other.
func TestFitsAreWhatTheAllocatorGives(t *testing.T) {
	machines := map[string]*state.State{}
	for _, kind := range []string{"two-islands", "a100-pcie-8", "mixed"} {
		machines[kind] = Machines(t, kind, 2, false)
	}
	allocator := allocation.New(allocation.Default137())
	rapid.Check(t, func(t *rapid.T) {
		s, _, _ := used(t, machines)
		for _, fit := range view.Show(s, Driver, nil).Totals.Domains {
			cluster := allocation.Cluster{Slices: s.Tainted(), Classes: s.Classes, Claims: s.Claims}
			given := 0
			for _, name := range s.NodeNames() {
				node := s.Node(name)
				if node == nil {
					node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
				}
				for {
					next := Pending(&state.State{}, fmt.Sprintf("next%d", given), Driver+"/nvlinkDomain", Request("gpu.nvidia.com", int64(fit.Size)))
					got, err := allocator.Attempt(t.Context(), cluster, node, next)
					if len(got) == 0 {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					next.Status.Allocation = &got[0]
					cluster.Claims = append(cluster.Claims, next)
					given++
				}
			}
			if given != fit.Claims {
				t.Fatalf("%d claims for %d GPUs of one domain fit, the allocator gives devices to %d", fit.Claims, fit.Size, given)
			}
		}
	})
}

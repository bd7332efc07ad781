package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/plan"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

// Whatever is planned, in whatever order: nobody is promised what another has, GPUs are accounted for,
// what must share a domain does, and the cluster itself stays as it was.
func TestPromisesHold(t *testing.T) {
	machines := map[string]*state.State{}
	for _, kind := range []string{"two-islands", "a100-pcie-8", "mixed", "hgx-h100-8"} {
		machines[kind] = Machines(t, kind, 2, false)
	}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"two-islands", "a100-pcie-8", "mixed", "hgx-h100-8"}).Draw(t, "kind")
		s := machines[kind]
		var manifest strings.Builder
		tied := map[string]bool{}
		for i, count := range rapid.SliceOfN(rapid.IntRange(1, 5), 1, 6).Draw(t, "counts") {
			constraint := ""
			if tied[fmt.Sprintf("c%d", i)] = rapid.Bool().Draw(t, "tied"); tied[fmt.Sprintf("c%d", i)] {
				constraint = ", constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]"
			}
			fmt.Fprintf(&manifest, "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c%d, namespace: team-a}\n"+
				"spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: %d}}]%s}}\n", i, count, constraint)
		}
		objects, err := state.Decode([]byte(manifest.String()))
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Make(t.Context(), s, Driver, objects, 1, explain.Options{Search: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		owners := map[string]string{}
		for _, item := range p.Items {
			if item.Verdict != explain.Fits {
				if len(item.Choices) > 0 || item.Reason == "" {
					t.Fatalf("%s: %+v", item.Verdict, item)
				}
				continue
			}
			domains := map[string]bool{}
			for _, c := range item.Choices {
				at := item.Node + "/" + c.Device
				if other := owners[at]; other != "" {
					t.Fatalf("%s is promised to %s and to %s", at, other, item.Subject)
				}
				owners[at] = item.Subject
				domains[c.Domain] = true
			}
			if tied[strings.TrimPrefix(item.Subject, "ResourceClaim ")] && (len(domains) != 1 || domains[""]) {
				t.Fatalf("%s has the domains %v", item.Subject, domains)
			}
			if item.LinkCost < item.LeastCost {
				t.Fatalf("%s costs %d, less than %d", item.Subject, item.LinkCost, item.LeastCost)
			}
		}
		if p.Before.Free-p.After.Free != len(owners) || len(s.Claims) != 0 {
			t.Fatalf("free GPUs %d, then %d, promised %d; the cluster has %d claims", p.Before.Free, p.After.Free, len(owners), len(s.Claims))
		}
		for i, before := range p.Before.Domains {
			if p.After.Domains[i].Claims > before.Claims || p.After.Domains[i].Whole > before.Whole {
				t.Fatalf("more room after than before: %+v, %+v", before, p.After.Domains[i])
			}
		}
	})
}

package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/plan"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const four = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: four, namespace: team-a}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}], constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]}}}
`

const deployment = four + `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm, namespace: team-a}
spec:
  replicas: 3
  template: {spec: {resourceClaims: [{name: g, resourceClaimTemplateName: four}], containers: [{name: c, resources: {claims: [{name: g}]}}]}}
`

func make1(t *testing.T, s *state.State, yaml string, copies int) plan.Plan {
	t.Helper()
	objects, err := state.Decode([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Make(t.Context(), s, Driver, objects, copies, explain.Options{Search: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func text(t *testing.T, p plan.Plan) string {
	t.Helper()
	var b strings.Builder
	if err := p.Text(&b, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Each takes what it gets from the next; the link cost tells a domain from a mix, and the last does
// not fit.
func TestCopies(t *testing.T) {
	s := Machines(t, "two-islands", 1, false)
	p := make1(t, s, four, 3)
	for i, want := range []explain.Verdict{explain.Fits, explain.Fits, explain.DoesNotFit} {
		if p.Items[i].Verdict != want {
			t.Errorf("copy %d: %s (%s)", i, p.Items[i].Verdict, p.Items[i].Reason)
		}
	}
	if p.Items[0].LinkCost != 6 || p.Items[0].LeastCost != 6 || len(p.Items[0].Choices) != 4 || p.Items[0].Node != "node-0" {
		t.Errorf("the first gets %+v", p.Items[0])
	}
	if p.Items[0].Choices[0].Domain == p.Items[1].Choices[0].Domain {
		t.Error("both have the same domain")
	}
	if p.Before.Free != 8 || p.After.Free != 0 || len(s.Claims) != 0 {
		t.Errorf("free before %d, after %d; the cluster has %d claims", p.Before.Free, p.After.Free, len(s.Claims))
	}
	out := text(t, p)
	for _, w := range []string{"ResourceClaimTemplate four (1 of 3): fits node node-0", "every two share an NVLink domain", "does not fit", "Change:", "free GPUs"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
}

// Without a constraint four GPUs by number cross the islands when two of one are taken.
func TestLinkCost(t *testing.T) {
	s := Machines(t, "two-islands", 1, false)
	gpus := Names(s, "node-0", "gpu")
	Take(s, "a", gpus[0], gpus[1])
	p := make1(t, s, strings.Replace(four, ", constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "", 1), 1)
	if p.Items[0].LinkCost != 18 || p.Items[0].LeastCost != 6 {
		t.Errorf("link cost %d, least %d", p.Items[0].LinkCost, p.Items[0].LeastCost)
	}
	if out := text(t, p); !strings.Contains(out, "link cost 18; 6 with all in one NVLink domain") {
		t.Error(out)
	}
	tied := make1(t, s, four, 1)
	if tied.Items[0].LinkCost != 6 {
		t.Errorf("with the constraint the link cost is %d", tied.Items[0].LinkCost)
	}
}

// The pods of a workload are planned with the template of the same file, which is not planned by itself.
func TestWorkload(t *testing.T) {
	p := make1(t, Machines(t, "two-islands", 1, false), deployment, 1)
	if len(p.Items) != 3 || p.Items[0].Subject != "Deployment llm (1 of 3)" || p.Items[1].Verdict != explain.Fits || p.Items[2].Verdict != explain.DoesNotFit {
		t.Errorf("items %+v", p.Items)
	}
}

func TestClaimsOfFiles(t *testing.T) {
	s := Machines(t, "hgx-h100-8", 1, true)
	p := make1(t, s, `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: small}
spec: {selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].?profile.orValue("") == "1g.10gb"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, namespace: team-a}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: small}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: team-a}
spec: {resourceClaims: [{name: g, resourceClaimName: d}], containers: [{name: c, resources: {claims: [{name: g}]}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: d, namespace: team-a}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 7}}]}}
`, 1)
	if len(p.Items) != 2 || p.Items[0].Verdict != explain.Fits || p.Items[1].Verdict != explain.Fits || p.Items[1].Choices[0].Profile != "1g.10gb" {
		t.Fatalf("items %+v", p.Items)
	}
	if out := text(t, p); !strings.Contains(out, "largest free partition") {
		t.Error(out)
	}
}

func TestNothingToPlan(t *testing.T) {
	if _, err := plan.Make(t.Context(), &state.State{}, Driver, nil, 1, explain.Options{}); err == nil || !strings.Contains(err.Error(), "nothing to plan") {
		t.Errorf("%v", err)
	}
}

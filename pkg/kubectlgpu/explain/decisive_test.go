package explain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

// step is what a test wants of a step.
type step struct {
	Kind          explain.StepKind
	Detail        string
	Removed, Left int
	Decisive      bool
}

func steps(r explain.Request) []step {
	var out []step
	for _, s := range r.Steps {
		out = append(out, step{s.Kind, s.Detail, s.Removed, s.Left, s.Decisive})
	}
	return out
}

// Each kind of step can be the decisive one. What it removed and left is told, the steps before it are
// there, and no other is decisive.
func TestDecisiveSteps(t *testing.T) {
	const product = `device.attributes["gpu.nvidia.com"].?productName.orValue("") == "NVIDIA T4G"`
	capacity := func(amount string) resourceapi.DeviceRequest {
		r := Request(whole, 1)
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)}}
		return r
	}
	for name, tc := range map[string]struct {
		machine    string
		partitions bool
		prepare    func(s *state.State, gpus []string)
		constraint string
		request    resourceapi.DeviceRequest
		want       []step
	}{
		"class": {
			machine: "t4-4", request: Request(mig, 1),
			want: []step{{explain.StepClass, mig, 4, 0, true}},
		},
		"selector": {
			machine: "t4-4", request: Request(whole, 1, product),
			want: []step{{explain.StepClass, whole, 0, 4, false}, {explain.StepSelector, product, 4, 0, true}},
		},
		"selectors that remove nothing are left out": {
			machine: "mixed", request: Request(whole, 3, memory("1Gi"), memory("90Gi")),
			want: []step{{explain.StepClass, whole, 0, 5, false}, {explain.StepSelector, memory("90Gi"), 4, 1, true}},
		},
		"capacity": {
			machine: "t4-4", request: capacity("20Gi"),
			want: []step{{explain.StepClass, whole, 0, 4, false}, {explain.StepCapacity, "", 4, 0, true}},
		},
		"taint": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) {
				Taint(s, "example.com/a", resourceapi.DeviceTaintEffectNoSchedule, gpus[0])
				Taint(s, "example.com/b", resourceapi.DeviceTaintEffectNoExecute, gpus[1])
				Taint(s, "example.com/c", resourceapi.DeviceTaintEffectNone, gpus[2])
			}, request: Request(whole, 3),
			want: []step{{explain.StepClass, whole, 0, 4, false}, {explain.StepTaint, "example.com/a; example.com/b", 2, 2, true}},
		},
		"in use": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0], gpus[1]); Look(s, "monitor", gpus[2]) }, request: Request(whole, 3),
			want: []step{{explain.StepClass, whole, 0, 4, false}, {explain.StepInUse, "team-a/a → a", 2, 2, true}},
		},
		"a step before the decisive one": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) {
				Taint(s, "example.com/a", resourceapi.DeviceTaintEffectNoSchedule, gpus[0])
				Take(s, "a", gpus[1])
			}, request: Request(whole, 3),
			want: []step{{explain.StepClass, whole, 0, 4, false}, {explain.StepTaint, "example.com/a", 1, 3, false}, {explain.StepInUse, "team-a/a → a", 1, 2, true}},
		},
		"counters of the GPUs": {
			machine: "hgx-h100-8", partitions: true, prepare: func(s *state.State, gpus []string) {
				for i, gpu := range gpus {
					Take(s, fmt.Sprintf("a%d", i), gpu+"-mig-7g-80gb-0")
				}
			}, request: Request(mig, 1, profile("3g.40gb")),
			want: []step{
				{explain.StepClass, mig, 8, 200, false},
				{explain.StepSelector, profile("3g.40gb"), 184, 16, false},
				{explain.StepCounter, "in use: [gpu-0000-1b-00-0-mig-7g-80gb-0]", 16, 0, true},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Machines(t, tc.machine, 1, tc.partitions)
			if tc.prepare != nil {
				tc.prepare(s, Names(s, "node-0", "gpu"))
			}
			Pending(s, "p", tc.constraint, tc.request)
			x := pod(t, s, "p")
			if len(x.Nodes) != 1 || len(x.Nodes[0].Requests) != 1 {
				t.Fatalf("nodes %+v", x.Nodes)
			}
			got := steps(x.Nodes[0].Requests[0])
			for i := range got {
				// Of several holders the order is that of names, which presets decide.
				if got[i].Kind == explain.StepCounter && strings.HasPrefix(got[i].Detail, "in use: [") {
					got[i].Detail = tc.want[i].Detail
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if x.Verdict != explain.DoesNotFit {
				t.Errorf("verdict %q", x.Verdict)
			}
		})
	}
}

// shared is a cluster of one node with one GPU in shares of its memory: 80Gi, 10Gi where a claim says
// nothing.
func shared(t *testing.T, claims ...string) *state.State {
	t.Helper()
	s := &state.State{}
	Add(t, s, `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.nvidia.com
  nodeName: node-0
  pool: {name: node-0, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    allowMultipleAllocations: true
    attributes: {type: {string: gpu}}
    capacity: {memory: {value: 80Gi, requestPolicy: {default: 10Gi, validRange: {min: 1Gi, step: 1Gi}}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared.gpu.nvidia.com}
spec: {selectors: [{cel: {expression: device.allowMultipleAllocations}}]}
`)
	for i, amount := range claims {
		Add(t, s, fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c%[1]d, namespace: team-a, uid: u%[1]d}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: shared.gpu.nvidia.com}}]}}
status: {allocation: {devices: {results: [{request: g, driver: gpu.nvidia.com, pool: node-0, device: gpu-0, shareID: 0000000%[1]d-0000-0000-0000-000000000000, consumedCapacity: {memory: %[2]s}}]}}}
`, i, amount))
	}
	return s
}

// A shared device is in use when what is left of it is less than a request takes: what it asks for, or
// the device's default.
func TestSharedDevices(t *testing.T) {
	const class = "shared.gpu.nvidia.com"
	asks := func(amount string) resourceapi.DeviceRequest {
		r := Request(class, 1)
		if amount != "" {
			r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)}}
		}
		return r
	}
	for name, tc := range map[string]struct {
		have           []string
		amount         string
		verdict        explain.Verdict
		reason, change string
	}{
		"empty":                 {nil, "80Gi", explain.Fits, "can give", ""},
		"more than there is":    {nil, "81Gi", explain.DoesNotFit, "none have the capacity asked for", ""},
		"just enough left":      {[]string{"40Gi", "20Gi"}, "20Gi", explain.Fits, "can give", ""},
		"not enough left":       {[]string{"40Gi", "20Gi"}, "21Gi", explain.DoesNotFit, "none are free of 1: in use by team-a/c0; team-a/c1", "wait until claim team-a/c0 ends"},
		"default fits":          {[]string{"70Gi"}, "", explain.Fits, "can give", ""},
		"default does not":      {[]string{"71Gi"}, "", explain.DoesNotFit, "in use by team-a/c0", "wait until claim team-a/c0 ends"},
		"small beside the rest": {[]string{"71Gi"}, "9Gi", explain.Fits, "can give", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := shared(t, tc.have...)
			Pending(s, "p", "", asks(tc.amount))
			expect(t, pod(t, s, "p"), tc.verdict, tc.reason, tc.change)
		})
	}
}

// The changes are proposed in their order: what time heals, then what asks for less, then for
// something else; each makes it fit alone.
func TestChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare    func(s *state.State, gpus []string)
		machine    string
		constraint string
		request    resourceapi.DeviceRequest
		change     string
	}{
		"an owner before fewer": {
			prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0]) }, machine: "t4-4",
			request: Request(whole, 4), change: "wait until claim team-a/a → a ends, or end it; then it fits node node-0",
		},
		"the owner of most first": {
			prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0]); Take(s, "b", gpus[1], gpus[2]) }, machine: "t4-4",
			request: Request(whole, 2), change: "wait until claim team-a/b → b ends",
		},
		"a taint before fewer": {
			prepare: func(s *state.State, gpus []string) {
				Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, gpus[0])
			}, machine: "t4-4",
			request: Request(whole, 4), change: "heal the devices with taints example.com/xid, or tolerate them in the request",
		},
		"fewer before no constraint": {
			machine: "two-islands", constraint: byDomain, request: Request(whole, 5), change: "ask for 4 instead of 5 in request gpus",
		},
		"no constraint": {
			machine: "t4-4", constraint: byDomain, request: Request(whole, 2), change: "leave out the constraint on gpu.nvidia.com/nvlinkDomain",
		},
		"a selector": {
			machine: "t4-4", request: Request(whole, 1, memory("17Gi")), change: "loosen selector " + memory("17Gi") + " of request gpus",
		},
		"another class": {
			machine: "t4-4", request: Request(mig, 2), change: "ask for class gpu.nvidia.com instead of mig.nvidia.com in request gpus",
		},
		"a selector when others have gone": {
			prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus...) }, machine: "t4-4",
			request: Request(whole, 1, memory("17Gi")),
			change:  "loosen selector " + memory("17Gi") + " of request gpus, and wait until claim team-a/a → a ends; then it fits node node-0",
		},
		"fewer when others have gone": {
			prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[:2]...); Take(s, "b", gpus[2:]...) }, machine: "t4-4",
			request: Request(whole, 5), change: "ask for 4 instead of 5 in request gpus, and wait until claims team-a/a; team-a/b end",
		},
		"nothing helps": {
			machine: "t4-4", constraint: byDomain, request: Request(mig, 9), change: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Machines(t, tc.machine, 1, false)
			if tc.prepare != nil {
				tc.prepare(s, Names(s, "node-0", "gpu"))
			}
			Pending(s, "p", tc.constraint, tc.request)
			x := pod(t, s, "p")
			expect(t, x, explain.DoesNotFit, "", tc.change)
		})
	}
}

// Reasons for which a node takes no pod of a kind, whatever its devices.
func TestNodesThatAreOut(t *testing.T) {
	for name, tc := range map[string]struct {
		node   string
		change func(*corev1.PodSpec)
		want   string
	}{
		"cordoned":             {"spec: {unschedulable: true}", func(*corev1.PodSpec) {}, "the node is cordoned"},
		"node selector":        {"spec: {}", func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"a": "b"} }, "node selector or affinity does not match"},
		"taint":                {"spec: {taints: [{key: a, effect: NoExecute}]}", func(*corev1.PodSpec) {}, "does not tolerate the node's taint a:NoExecute"},
		"bound elsewhere":      {"spec: {}", func(p *corev1.PodSpec) { p.NodeName = "node-9" }, "bound to node node-9"},
		"a taint that prefers": {"spec: {taints: [{key: a, effect: PreferNoSchedule}]}", func(*corev1.PodSpec) {}, ""},
		"tolerated":            {"spec: {taints: [{key: a, effect: NoSchedule}]}", func(p *corev1.PodSpec) { p.Tolerations = []corev1.Toleration{{Key: "a", Operator: "Exists"}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := Machines(t, "t4-4", 1, false)
			Add(t, s, "apiVersion: v1\nkind: Node\nmetadata: {name: node-0, uid: a}\n"+tc.node+"\n")
			Pending(s, "p", "", Request(whole, 1))
			tc.change(&s.Pods[0].Spec)
			x := pod(t, s, "p")
			if tc.want == "" {
				expect(t, x, explain.Fits, "can give", "")
				return
			}
			expect(t, x, explain.DoesNotFit, tc.want, "")
		})
	}
}

// A claim that is allocated ties the pod's other claims to its node.
func TestClaimAllocatedElsewhere(t *testing.T) {
	s := Machines(t, "t4-4", 2, false)
	held := Take(s, "held", Names(s, "node-1", "gpu")[0])
	held.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}},
	}}}}
	Pending(s, "p", "", Request(whole, 4))
	p := s.Pods[0]
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "held", ResourceClaimName: &held.Name})
	p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "held"})
	x := pod(t, s, "p")
	expect(t, x, explain.DoesNotFit, "node node-1: request gpus wants 4 of class gpu.nvidia.com, 3 are free of 4", "wait until claim team-a/held")
	if len(x.Nodes) != 2 || x.Nodes[1].Name != "node-0" || x.Nodes[1].Reason != "claim held is allocated elsewhere" {
		t.Errorf("nodes %+v", x.Nodes)
	}
}

// A slice that several nodes reach is looked at for each of them, beside their own.
func TestDevicesOfSeveralNodes(t *testing.T) {
	s := Machines(t, "t4-4", 2, false)
	Add(t, s, `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: 00000-all}
spec:
  driver: gpu.nvidia.com
  allNodes: true
  pool: {name: far, generation: 1, resourceSliceCount: 1}
  devices: [{name: far-gpu, attributes: {type: {string: gpu}}}]
`)
	Pending(s, "p", "", Request(whole, 5))
	x := pod(t, s, "p")
	expect(t, x, explain.Fits, "can give", "")
	if len(x.Devices) != 5 || x.Devices[0] != "far/far-gpu" {
		t.Errorf("devices %v", x.Devices)
	}
	Take(s, "a", "far/far-gpu")
	expect(t, pod(t, s, "p"), explain.DoesNotFit, "wants 5 of class gpu.nvidia.com, 4 are free of 5: in use by team-a/a", "wait until claim team-a/a")
}

// In a large cluster an impossible claim is explained for every node, with the nearest change: the time
// for searches is not spent by counting.
func TestManyNodes(t *testing.T) {
	const nodes = 200
	s := Machines(t, "hgx-h100-8", nodes, false)
	for i := range nodes {
		gpus := Names(&state.State{Slices: s.Slices[i : i+1]}, *s.Slices[i].Spec.NodeName, "gpu")
		Take(s, fmt.Sprintf("c%d", i), gpus[0])
	}
	Pending(s, "p", byDomain, Request(whole, 8))
	x := pod(t, s, "p")
	expect(t, x, explain.DoesNotFit, "7 are free of 8", "wait until claim team-a/c0 → c0 ends")
	if len(x.Nodes) != nodes {
		t.Errorf("%d nodes", len(x.Nodes))
	}
	for _, n := range x.Nodes {
		if n.Verdict != explain.DoesNotFit || !strings.Contains(n.Reason, "in use by team-a/c") {
			t.Fatalf("%s: %s: %s", n.Name, n.Verdict, n.Reason)
		}
	}
	var b strings.Builder
	if err := x.Text(&b, false); err != nil || strings.Count(b.String(), "\n") > 12 {
		t.Errorf("%v, %d lines: equal nodes share a line", err, strings.Count(b.String(), "\n"))
	}
}

// The scheduler takes the first node that fits; those behind it need not be looked at.
func TestFirstFit(t *testing.T) {
	s := Machines(t, "t4-4", 4, false)
	Take(s, "a", Names(s, "node-0", "gpu")...)
	claim := Pending(s, "p", "", Request(whole, 1))
	options := generous
	options.FirstFit = true
	x := explain.New(s, options).Claims(t.Context(), []*resourceapi.ResourceClaim{claim}, s.NodeNames())
	expect(t, x, explain.Fits, "can give", "")
	if len(x.Nodes) != 2 || x.Nodes[1].Name != "node-1" {
		t.Errorf("nodes %+v", x.Nodes)
	}
}

// A warning that was given again and again is told once.
func TestRepeatedEvents(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	Pending(s, "p", "", Request(whole, 9))
	for i, text := range []string{"no", "no", "never", "no", "hm", "well"} {
		Add(t, s, fmt.Sprintf("apiVersion: v1\nkind: Event\nmetadata: {name: e%d, namespace: team-a}\ntype: Warning\nreason: R\nmessage: '%s'\nlastTimestamp: 2026-01-01T00:00:0%dZ\ninvolvedObject: {kind: Pod, namespace: team-a, name: p}\n", i, text, i))
	}
	if diff := cmp.Diff([]string{"R: well", "R: hm", "R: no"}, pod(t, s, "p").Events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// BenchmarkLargeCluster is a claim that cannot be met in a cluster of 1,000 nodes of 8 GPUs, each GPU in use.
func BenchmarkLargeCluster(b *testing.B) {
	s := Machines(b, "hgx-h100-8", 1000, false)
	for i, d := range s.Devices() {
		Take(s, fmt.Sprintf("c%d", i), d.Pool+"/"+d.Name)
	}
	Pending(s, "p", byDomain, Request(whole, 9))
	for b.Loop() {
		x, err := explain.New(s, explain.Options{}).Claim(b.Context(), Namespace, "p")
		if err != nil || x.Verdict != explain.DoesNotFit {
			b.Fatal(x.Verdict, err)
		}
	}
}

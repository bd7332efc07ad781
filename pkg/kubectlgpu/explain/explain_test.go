package explain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const (
	whole    = "gpu.nvidia.com"
	mig      = "mig.nvidia.com"
	byDomain = Driver + "/nvlinkDomain"
	byParent = Driver + "/parentUUID"
)

// generous keeps the clock of a busy machine out of the answers: every search here is short.
var generous = explain.Options{Search: 10 * time.Minute}

func memory(least string) string {
	return `device.capacity["gpu.nvidia.com"].?memory.orValue(quantity("0")).compareTo(quantity("` + least + `")) >= 0`
}

func profile(name string) string {
	return `device.attributes["gpu.nvidia.com"].?profile.orValue("") == "` + name + `"`
}

func pod(t *testing.T, s *state.State, name string) explain.Explanation {
	t.Helper()
	x, err := explain.New(s, generous).Pod(t.Context(), Namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// expect checks verdict, and words of reason and change.
func expect(t *testing.T, x explain.Explanation, verdict explain.Verdict, reason, change string) {
	t.Helper()
	if x.Verdict != verdict || !strings.Contains(x.Reason, reason) || !strings.Contains(x.Change, change) {
		t.Errorf("verdict %q, reason %q, change %q; want %q, %q, %q", x.Verdict, x.Reason, x.Change, verdict, reason, change)
	}
	if change == "" && x.Change != "" {
		t.Errorf("a change is proposed: %q", x.Change)
	}
}

// Each obstacle is found and named, with the nearest change.
func TestReasons(t *testing.T) {
	for name, tc := range map[string]struct {
		machine        string
		partitions     bool
		prepare        func(s *state.State, gpus []string)
		constraint     string
		requests       []resourceapi.DeviceRequest
		verdict        explain.Verdict
		reason, change string
	}{
		"fits": {
			machine: "two-islands", constraint: byDomain, requests: []resourceapi.DeviceRequest{Request(whole, 4)},
			verdict: explain.Fits, reason: "can give",
		},
		"unknown class": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{Request("none", 1)},
			verdict: explain.Invalid, reason: "DeviceClass none was not found",
		},
		"no device of the class": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{Request(mig, 1)},
			verdict: explain.DoesNotFit, reason: "none of the node's 4 devices are of that class", change: "ask for class gpu.nvidia.com",
		},
		"more than there are": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{Request(whole, 5)},
			verdict: explain.DoesNotFit, reason: "4 of the node's 4 devices", change: "ask for 4 instead of 5",
		},
		"selector": {
			machine: "mixed", requests: []resourceapi.DeviceRequest{Request(whole, 1, memory("200Gi"))},
			verdict: explain.DoesNotFit, reason: "leaves none of 5 (memory here:", change: "loosen selector",
		},
		"second selector": {
			machine: "mixed", requests: []resourceapi.DeviceRequest{Request(whole, 2, memory("10Gi"), memory("90Gi"))},
			verdict: explain.DoesNotFit, reason: "leaves 1 of 5", change: "ask for 1 instead of 2",
		},
		"broken selector": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{Request(whole, 1, "device.nonsense")},
			verdict: explain.Invalid, reason: "selector 1 of request gpus fails",
		},
		"unguarded selector": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{Request(whole, 1, `device.attributes["gpu.nvidia.com"].nvlinkLinks > 1`)},
			verdict: explain.Invalid, reason: "guard what a device may lack",
		},
		"taint": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) {
				for _, g := range gpus {
					Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, g)
				}
			}, requests: []resourceapi.DeviceRequest{Request(whole, 1)},
			verdict: explain.DoesNotFit, reason: "taints that it does not tolerate (example.com/xid)", change: "heal the devices with taints example.com/xid",
		},
		"in use": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[:3]...); Take(s, "b", gpus[3]) },
			requests: []resourceapi.DeviceRequest{Request(whole, 1)},
			verdict:  explain.DoesNotFit, reason: "none are free of 4: in use by team-a/a", change: "wait until claim team-a/a → a ends",
		},
		"two owners have to go": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[:3]...); Take(s, "b", gpus[3]) },
			requests: []resourceapi.DeviceRequest{Request(whole, 4)},
			verdict:  explain.DoesNotFit, reason: "none are free of 4", change: "wait until claims team-a/a; team-a/b end",
		},
		"partition in the way": {
			machine: "hgx-h100-8", partitions: true, prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0]+"-mig-1g-10gb-0") },
			requests: []resourceapi.DeviceRequest{Request(whole, 8)},
			verdict:  explain.DoesNotFit, reason: "7 more fit at once (in use: [gpu-", change: "wait until claim team-a/a",
		},
		"NVLink domain": {
			machine: "two-islands", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0]); Take(s, "b", gpus[4]) },
			constraint: byDomain, requests: []resourceapi.DeviceRequest{Request(whole, 4)},
			verdict: explain.DoesNotFit, reason: "4 of class gpu.nvidia.com with an equal gpu.nvidia.com/nvlinkDomain are wanted, the largest group has 3", change: "wait until claim team-a/a",
		},
		"no NVLink": {
			machine: "t4-4", constraint: byDomain, requests: []resourceapi.DeviceRequest{Request(whole, 2)},
			verdict: explain.DoesNotFit, reason: "no device that is left has that attribute", change: "leave out the constraint",
		},
		"eight partitions of seven": {
			machine: "hgx-h100-8", partitions: true, constraint: byParent, requests: []resourceapi.DeviceRequest{Request(mig, 8, profile("1g.10gb"))},
			verdict: explain.DoesNotFit, reason: "the largest group has 7", change: "ask for 7 instead of 8",
		},
		"two requests for the same": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{named("a", 3), named("b", 2)},
			verdict: explain.DoesNotFit, reason: "want 5 devices and 4 fit at once", change: "",
		},
		"all devices, one in use": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus[0]) }, requests: []resourceapi.DeviceRequest{all()},
			verdict: explain.DoesNotFit, reason: "3 are free of 4", change: "wait until claim team-a/a",
		},
		"admin access to devices in use": {
			machine: "t4-4", prepare: func(s *state.State, gpus []string) { Take(s, "a", gpus...) }, requests: []resourceapi.DeviceRequest{admin()},
			verdict: explain.Fits, reason: "can give",
		},
		"alternatives": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{either(whole, 5, mig, 1)},
			verdict: explain.DoesNotFit, reason: "request gpus/first wants 5 of class gpu.nvidia.com, 4 of the node's 4 devices are of that class; and request gpus/second wants 1",
		},
		"second alternative": {
			machine: "t4-4", requests: []resourceapi.DeviceRequest{either(whole, 5, whole, 1)},
			verdict: explain.Fits, reason: "can give",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Machines(t, tc.machine, 1, tc.partitions)
			if tc.prepare != nil {
				tc.prepare(s, Names(s, "node-0", "gpu"))
			}
			Pending(s, "p", tc.constraint, tc.requests...)
			expect(t, pod(t, s, "p"), tc.verdict, tc.reason, tc.change)
		})
	}
}

func named(name string, count int64) resourceapi.DeviceRequest {
	r := Request(whole, count)
	r.Name = name
	return r
}

func all() resourceapi.DeviceRequest {
	r := Request(whole, 0)
	r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	return r
}

func admin() resourceapi.DeviceRequest {
	r := Request(whole, 4)
	yes := true
	r.Exactly.AdminAccess = &yes
	return r
}

func either(first string, n int64, second string, m int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "first", DeviceClassName: first, Count: n, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
		{Name: "second", DeviceClassName: second, Count: m, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
	}}
}

// Counting never says that something is impossible which the allocator finds, and what it says fits
// the allocator gives.
func TestCountingAgreesWithTheAllocator(t *testing.T) {
	allocator := allocation.New(allocation.Default137())
	rapid.Check(t, func(rt *rapid.T) {
		s := Machines(t, "two-islands", 1, false)
		var taken []string
		for _, gpu := range Names(s, "node-0", "gpu") {
			if rapid.Bool().Draw(rt, gpu) {
				taken = append(taken, gpu)
			}
		}
		Take(s, "somebody", taken...)
		constraint := rapid.SampledFrom([]string{"", byDomain, "resource.kubernetes.io/pcieRoot"}).Draw(rt, "constraint")
		claim := Pending(s, "p", constraint, named("a", int64(rapid.IntRange(1, 4).Draw(rt, "a"))), named("b", int64(rapid.IntRange(1, 3).Draw(rt, "b"))))
		results, err := allocator.Attempt(t.Context(), allocation.Cluster{Slices: s.Slices, Classes: s.Classes, Claims: s.Claims}, s.Node("node-0"), claim)
		if err != nil {
			rt.Fatal(err)
		}
		x, err := explain.New(s, generous).Claim(t.Context(), Namespace, "p")
		if err != nil {
			rt.Fatal(err)
		}
		if fits := results != nil; fits != (x.Verdict == explain.Fits) || fits == (x.Verdict == explain.DoesNotFit) {
			rt.Errorf("%v taken, constraint %q: the allocator gives %v, the verdict is %s: %s", taken, constraint, results, x.Verdict, x.Reason)
		}
	})
}

// What may fit is searched for a bounded time: without any, the answer is that it is not known.
func TestNoTimeToSearch(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	Pending(s, "p", "", Request(whole, 1))
	x, err := explain.New(s, explain.Options{Search: 1}).Claim(t.Context(), Namespace, "p")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, x, explain.Undecided, "the search for a combination was ended", "")
}

// Of several nodes the one that is nearest to a fit is told of, and nodes that a pod cannot run on
// are left out with the reason.
func TestNodes(t *testing.T) {
	s := Machines(t, "t4-4", 3, false)
	Add(t, s, `
apiVersion: v1
kind: Node
metadata: {name: node-0, uid: a}
spec: {taints: [{key: sku, value: gpu, effect: NoSchedule}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-1, uid: b}
spec: {unschedulable: true}
---
apiVersion: v1
kind: Node
metadata: {name: node-2, uid: c, labels: {disk: ssd}}
`)
	Take(s, "a", Names(s, "node-2", "gpu")...)
	Pending(s, "p", "", Request(whole, 1))
	x := pod(t, s, "p")
	expect(t, x, explain.DoesNotFit, "node node-2: request gpus wants 1", "then it fits node node-2")
	reasons := map[string]string{}
	for _, n := range x.Nodes {
		reasons[n.Name] = n.Reason
	}
	if !strings.Contains(reasons["node-0"], "taint sku=gpu:NoSchedule") || !strings.Contains(reasons["node-1"], "cordoned") {
		t.Errorf("nodes %v", reasons)
	}
	s.Pods[0].Spec.NodeSelector = map[string]string{"disk": "none"}
	s.Pods[0].Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	expect(t, pod(t, s, "p"), explain.DoesNotFit, "no node takes the pod", "")
}

func TestPods(t *testing.T) {
	base := func() *state.State {
		s := Machines(t, "t4-4", 1, false)
		Add(t, s, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: team-a}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: plain}
spec: {extendedResourceName: nvidia.com/gpu, selectors: [{cel: {expression: "true"}}]}
`)
		return s
	}
	for name, tc := range map[string]struct {
		spec           string
		verdict        explain.Verdict
		reason, change string
	}{
		"from a template":    {`{resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c, resources: {claims: [{name: g}]}}]}`, explain.Fits, "", ""},
		"no such template":   {`{resourceClaims: [{name: g, resourceClaimTemplateName: two}], containers: [{name: c, resources: {claims: [{name: g}]}}]}`, explain.Invalid, "ResourceClaimTemplate two was not found", ""},
		"no such claim":      {`{resourceClaims: [{name: g, resourceClaimName: two}], containers: [{name: c, resources: {claims: [{name: g}]}}]}`, explain.Invalid, "ResourceClaim two was not found", ""},
		"claim not used":     {`{resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c}]}`, explain.Invalid, "no container names claim g", ""},
		"no claim at all":    {`{containers: [{name: c}]}`, explain.Fits, "asks for no devices", ""},
		"extended resource":  {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 9}}}]}`, explain.DoesNotFit, "wants 9 of class plain", "ask for 4 instead of 9"},
		"of a class by name": {`{containers: [{name: c, resources: {limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: 2}}}]}`, explain.Fits, "", ""},
		"of nobody":          {`{containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.5gb: 1}}}]}`, explain.Invalid, "no DeviceClass carries", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := base()
			Add(t, s, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team-a}\nspec: %s\n", tc.spec))
			expect(t, pod(t, s, "p"), tc.verdict, tc.reason, tc.change)
		})
	}
	if _, err := explain.New(base(), generous).Pod(t.Context(), Namespace, "none"); err == nil {
		t.Error("an unknown pod is explained")
	}
}

// A pod whose devices are allocated and that does not run: the newest warning says why.
func TestFailedPod(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	Pending(s, "p", "", Request(whole, 1))
	claim := Take(s, "p2", Names(s, "node-0", "gpu")[0])
	s.Pods[0].Spec.ResourceClaims[0].ResourceClaimName = &claim.Name
	s.Pods[0].Spec.NodeName = "node-0"
	for i, text := range []string{"old", "device is busy"} {
		Add(t, s, fmt.Sprintf("apiVersion: v1\nkind: Event\nmetadata: {name: e%d, namespace: team-a}\ntype: Warning\nreason: FailedPrepareDynamicResources\nmessage: %s\nlastTimestamp: 2026-01-01T00:00:0%dZ\ninvolvedObject: {kind: Pod, namespace: team-a, name: p}\n", i, text, i))
	}
	x := pod(t, s, "p")
	expect(t, x, explain.Allocated, "it does not run on node node-0: FailedPrepareDynamicResources: device is busy", "")
	if len(x.Devices) != 1 || len(x.Events) != 2 {
		t.Errorf("devices %v, events %v", x.Devices, x.Events)
	}
}

func TestIncompletePool(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	s.Slices[0].Spec.Pool.ResourceSliceCount = 2
	Pending(s, "p", "", Request(whole, 1))
	expect(t, pod(t, s, "p"), explain.DoesNotFit, "pool node-0 of driver gpu.nvidia.com is incomplete: 1 of 2 slices", "")
	expect(t, pod(t, func() *state.State {
		none := &state.State{Classes: s.Classes, Claims: s.Claims, Pods: s.Pods}
		return none
	}(), "p"), explain.DoesNotFit, "no node publishes devices", "")
}

func TestText(t *testing.T) {
	s := Machines(t, "t4-4", 5, false)
	Take(s, "a", Names(s, "node-0", "gpu")...)
	Pending(s, "p", "", Request(whole, 5))
	x := pod(t, s, "p")
	for wide, words := range map[bool][]string{
		false: {"pod team-a/p: does not fit", "Reason:", "Change:", "node-1 and 3 more", "4 !", "class"},
		true:  {"node-0: does not fit", "! class", "removes 0, leaves 4", "in use"},
	} {
		var b strings.Builder
		if err := x.Text(&b, wide); err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(b.String(), w) {
				t.Errorf("wide %t: no %q in\n%s", wide, w, b.String())
			}
		}
	}
}

// BenchmarkImpossible: what an allocator searches for minutes is answered by counting.
func BenchmarkImpossible(b *testing.B) {
	s := Machines(b, "hgx-h100-8", 16, true)
	Pending(s, "p", byParent, Request(mig, 8, profile("1g.10gb")))
	for b.Loop() {
		x, err := explain.New(s, explain.Options{}).Claim(b.Context(), Namespace, "p")
		if err != nil || x.Verdict != explain.DoesNotFit {
			b.Fatal(x.Verdict, err)
		}
	}
}

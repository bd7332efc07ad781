// Package statetest makes clusters for tests of the command line: recorded machines, objects from
// YAML, and claims that hold devices. It must not be imported by the product.
package statetest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/offer"
)

// Driver is the name of the driver, Namespace that of claims and pods.
const (
	Driver    = "gpu.nvidia.com"
	Namespace = "team-a"
)

// Machines is a cluster of empty nodes of one kind: node-0 and up.
func Machines(t testing.TB, kind string, nodes int, partitions bool) *state.State {
	t.Helper()
	machine, err := preset.Get(kind)
	if err != nil {
		t.Fatal(err)
	}
	s, err := machine.State(nodes, preset.Settings{
		DriverName: Driver, Settings: offer.Settings{Vocabulary: device.VocabularyFull, Partitions: partitions},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Add puts objects from YAML into a cluster.
func Add(t testing.TB, s *state.State, yaml string) {
	t.Helper()
	objects, err := state.Decode([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := s.Add(o); err != nil {
			t.Fatal(err)
		}
	}
}

// Names are the devices of a node, "node-0/gpu-…", of one type, in their order.
func Names(s *state.State, node, kind string) []string {
	var out []string
	for _, d := range s.Devices() {
		if d.Node == node && d.Kind() == kind {
			out = append(out, d.Pool+"/"+d.Name)
		}
	}
	return out
}

// Take has a claim of its own hold devices, "node/device", and reserves it for a pod of the same
// name. It returns the claim.
func Take(s *state.State, name string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(devices)),
	}}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		pool, device, _ := strings.Cut(d, "/")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpus", Driver: Driver, Pool: pool, Device: device,
		})
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("uid-pod-" + name)}}
	s.Claims = append(s.Claims, c)
	return c
}

// Look is the same holder with admin access.
func Look(s *state.State, name string, devices ...string) {
	for i := range Take(s, name, devices...).Status.Allocation.Devices.Results {
		s.Claims[len(s.Claims)-1].Status.Allocation.Devices.Results[i].AdminAccess = ptr.To(true)
	}
}

// Taint puts a taint on one device, "node/device", by a rule.
func Taint(s *state.State, key string, effect resourceapi.DeviceTaintEffect, device string) {
	pool, name, _ := strings.Cut(device, "/")
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: key + "-" + name}}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(Driver), Pool: &pool, Device: &name}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: key, Value: "79", Effect: effect}
	s.TaintRules = append(s.TaintRules, rule)
}

// Pending adds a claim of requests, and a pod of the same name that waits for it.
func Pending(s *state.State, name, constraint string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = requests
	if constraint != "" {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(constraint))}}
	}
	s.Claims = append(s.Claims, c)
	s.Pods = append(s.Pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-pod-" + name)},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &c.Name}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
	return c
}

// Request asks for devices of a class; selectors are CEL.
func Request(class string, count int64, selectors ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return r
}

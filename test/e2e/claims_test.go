//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// TestOneGPUEach runs two pods with one GPU each: they get different ones and see no other.
func TestOneGPUEach(t *testing.T) {
	s := begin(t)
	objects := s.spec("one-gpu")
	second := objects.Pods()[0].DeepCopy()
	second.Name = "another-gpu"
	names := s.create(append(objects, second))
	pods := s.running(names...)
	first, other := s.holds(pods[0], 1), s.holds(pods[1], 1)
	if first[0].UUID == other[0].UUID {
		t.Errorf("both pods were given %s", first[0].UUID)
	}
}

// TestTwoContainersOneClaim lets two containers of a pod use the same GPU.
func TestTwoContainersOneClaim(t *testing.T) {
	s := begin(t)
	pod := s.running(s.create(s.spec("two-containers-one-claim"))...)[0]
	if len(pod.Spec.Containers) != 2 {
		t.Fatalf("the example has %d containers", len(pod.Spec.Containers))
	}
	s.holds(pod, 1)
}

// TestTwoPodsOneClaim lets two pods use the same GPU; it stays the first one's when the second
// has gone, since the claim lives on.
func TestTwoPodsOneClaim(t *testing.T) {
	s := begin(t)
	pods := s.running(s.create(s.spec("two-pods-one-claim"))...)
	first, second := s.holds(pods[0], 1), s.holds(pods[1], 1)
	if diff := cmp.Diff(rig.UUIDs(first), rig.UUIDs(second)); diff != "" {
		t.Errorf("the pods do not share their GPU (-first +second):\n%s", diff)
	}
	if pods[0].Spec.NodeName != pods[1].Spec.NodeName {
		t.Errorf("the pods are on %s and %s", pods[0].Spec.NodeName, pods[1].Spec.NodeName)
	}
	s.remove(pods[1].Name)
	s.holds(pods[0], 1)
}

// TestCount asks for several GPUs at once.
func TestCount(t *testing.T) {
	for _, count := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			s := begin(t)
			pod := s.running(s.create(s.spec(fmt.Sprintf("count-%d", count)))...)[0]
			gpus := s.holds(pod, count)
			for _, g := range gpus {
				if g.Node != pod.Spec.NodeName {
					t.Errorf("%s of %s was given to a pod on %s", g.Device, g.Node, pod.Spec.NodeName)
				}
			}
		})
	}
}

// TestExtendedResource runs a pod from the time of the device plugin, unchanged.
func TestExtendedResource(t *testing.T) {
	s := begin(t)
	pod := s.running(s.create(s.spec("extended-resource"))...)[0]
	s.holds(pod, 1)
}

// TestAdminAccess lets a monitoring agent see every GPU of its node while others use them. It
// takes nothing: who comes later still gets a free GPU.
func TestAdminAccess(t *testing.T) {
	s := begin(t)
	_, user := s.start("user", islands, request{count: 4})

	labelled := s.makeNamespace(map[string]string{"resource.kubernetes.io/admin-access": "true"})
	var monitor rig.Objects
	for _, object := range s.spec("admin-access") {
		if _, isNamespace := object.(*corev1.Namespace); !isNamespace {
			object.SetNamespace(labelled)
			monitor = append(monitor, object)
		}
	}
	pin(islands, monitor.Pods()...)
	at := *s
	at.namespace = labelled
	pod := at.running(s.create(monitor)...)[0]
	all := at.holds(pod, 8)
	for _, g := range all {
		if !g.Admin {
			t.Errorf("%s was given without admin access", g.Device)
		}
	}

	_, later := s.start("later", islands, request{count: 4})
	if diff := cmp.Diff(rig.UUIDs(all), slices.Sorted(slices.Values(append(rig.UUIDs(user), rig.UUIDs(later)...)))); diff != "" {
		t.Errorf("the users do not hold the node's GPUs (-node +users):\n%s", diff)
	}
	// The agent's end undoes nothing of the others'.
	at.remove(pod.Name)
	s.holds(s.getPod("user"), 4)
	s.holds(s.getPod("later"), 4)
}

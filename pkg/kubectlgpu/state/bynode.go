package state

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ByNode is a state sorted by node, so that what concerns one node need not be looked for among all.
type ByNode struct {
	of    *State
	nodes map[string]*corev1.Node
	// slices are those of each node; "" is what several nodes reach.
	slices map[string][]*resourceapi.ResourceSlice
	// claims are those that have devices of a pool, of any driver.
	claims map[string][]*resourceapi.ResourceClaim
}

// ByNode sorts the state by node.
func (s *State) ByNode() ByNode {
	b := ByNode{of: s, nodes: map[string]*corev1.Node{}, slices: map[string][]*resourceapi.ResourceSlice{}, claims: map[string][]*resourceapi.ResourceClaim{}}
	for _, n := range s.Nodes {
		b.nodes[n.Name] = n
	}
	for _, slice := range s.Slices {
		name := ""
		if slice.Spec.NodeName != nil {
			name = *slice.Spec.NodeName
		}
		b.slices[name] = append(b.slices[name], slice)
	}
	for _, claim := range s.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		seen := map[string]bool{}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if !seen[r.Pool] {
				seen[r.Pool] = true
				b.claims[r.Pool] = append(b.claims[r.Pool], claim)
			}
		}
	}
	return b
}

// Node is [State.Node].
func (b ByNode) Node(name string) *corev1.Node {
	if n := b.nodes[name]; n != nil {
		return n
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// State is the part of the state that concerns one node: its slices and those that several nodes reach,
// and the claims that have something of them.
func (b ByNode) State(node string) *State {
	out := *b.of
	out.Slices, out.Claims = nil, nil
	// The order is that of the state, which is the scheduler's.
	own, common := b.slices[node], b.slices[""]
	for len(own) > 0 || len(common) > 0 {
		if len(common) == 0 || len(own) > 0 && own[0].Name <= common[0].Name {
			out.Slices, own = append(out.Slices, own[0]), own[1:]
		} else {
			out.Slices, common = append(out.Slices, common[0]), common[1:]
		}
	}
	pools, seen := map[string]bool{}, map[*resourceapi.ResourceClaim]bool{}
	for _, slice := range out.Slices {
		pool := slice.Spec.Pool.Name
		if pools[pool] {
			continue
		}
		pools[pool] = true
		for _, claim := range b.claims[pool] {
			if !seen[claim] {
				seen[claim] = true
				out.Claims = append(out.Claims, claim)
			}
		}
	}
	return &out
}

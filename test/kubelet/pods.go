package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// State is what a kubelet keeps over a restart: which pods hold which claims, not that they are prepared.
type State struct {
	claims map[Claim]heldClaim
}

// heldClaim is a claim that pods of this node use.
type heldClaim struct {
	drivers  []string
	pods     []types.UID
	prepared bool
	devices  []Device
}

// podBook keeps the claims that pods hold. One lock over all calls would make them wait for each other,
// so it is only held between them.
type podBook struct {
	mu     sync.Mutex
	claims map[Claim]heldClaim
}

func newPodBook(s *State) *podBook {
	b := &podBook{claims: map[Claim]heldClaim{}}
	if s != nil {
		maps.Copy(b.claims, s.claims)
	}
	return b
}

// state returns the book as the next kubelet finds it: nothing counts as prepared.
func (b *podBook) state() *State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &State{claims: map[Claim]heldClaim{}}
	for c, h := range b.claims {
		h.prepared, h.devices = false, nil
		s.claims[c] = h
	}
	return s
}

// hold notes that pod uses the claim, before any call, and returns the entry. It refuses a claim while
// another of the same name is still held.
func (b *podBook) hold(c Claim, pod types.UID, drivers []string) (heldClaim, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other := range b.claims {
		if other.Namespace == c.Namespace && other.Name == c.Name && other.UID != c.UID {
			return heldClaim{}, fmt.Errorf("claim %s/%s: an older claim of that name, UID %s, is still prepared", c.Namespace, c.Name, other.UID)
		}
	}
	h := b.claims[c]
	h.drivers = drivers
	if !slices.Contains(h.pods, pod) {
		h.pods = append(slices.Clone(h.pods), pod)
	}
	b.claims[c] = h
	return h, nil
}

func (b *podBook) prepared(c Claim, devices []Device) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.claims[c]
	h.prepared, h.devices = true, devices
	b.claims[c] = h
}

// PreparePod does what happens before a pod's sandbox is made: it reads the pod's claims from the API, checks that they are
// allocated and reserved, and prepares those that are not, all claims for one driver in one call. The
// result maps each container (and init container) to its CDI device ids.
func (k *Kubelet) PreparePod(ctx context.Context, pod *corev1.Pod) (map[string][]string, error) {
	claims, err := k.claimsOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	batches := map[string][]Claim{}
	for _, claim := range claims {
		drivers := driversOf(claim)
		held, err := k.pods.hold(ClaimOf(claim), pod.UID, drivers)
		if err != nil {
			return nil, err
		}
		if held.prepared {
			continue
		}
		for _, d := range drivers {
			batches[d] = append(batches[d], ClaimOf(claim))
		}
	}
	ready := map[Claim][]Device{}
	for driver, batch := range batches {
		result, err := k.Prepare(ctx, driver, batch...)
		if err != nil {
			return nil, err
		}
		for _, c := range batch {
			if err := result[c.UID].Err; err != nil {
				return nil, fmt.Errorf("prepare claim %s/%s: %w", c.Namespace, c.Name, err)
			}
			ready[c] = append(ready[c], result[c.UID].Devices...)
		}
	}
	for c, d := range ready {
		k.pods.prepared(c, d)
	}
	return k.containers(pod, claims), nil
}

// claimsOf reads the pod's claims, by the pod's names for them.
func (k *Kubelet) claimsOf(ctx context.Context, pod *corev1.Pod) (map[string]*resourceapi.ResourceClaim, error) {
	if k.options.Client == nil {
		return nil, errors.New("kubelet has no Client: pods cannot be prepared")
	}
	claims := map[string]*resourceapi.ResourceClaim{}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, mustCheckOwner, err := resourceclaim.Name(pod, ref)
		if err != nil {
			return nil, fmt.Errorf("claim %s of pod %s/%s: %w", ref.Name, pod.Namespace, pod.Name, err)
		}
		if name == nil {
			continue // the template said that this pod needs none
		}
		claim, err := k.options.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("claim %s of pod %s/%s: %w", ref.Name, pod.Namespace, pod.Name, err)
		}
		if mustCheckOwner {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
			}
		}
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
		}
		if !resourceclaim.IsReservedForPod(pod, claim, false) {
			return nil, fmt.Errorf("claim %s/%s is not reserved for pod %s", claim.Namespace, claim.Name, pod.Name)
		}
		claims[ref.Name] = claim
	}
	return claims, nil
}

func driversOf(claim *resourceapi.ResourceClaim) []string {
	var drivers []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		if !slices.Contains(drivers, r.Driver) {
			drivers = append(drivers, r.Driver)
		}
	}
	return drivers
}

// containers sorts the prepared devices by the containers that refer to them.
func (k *Kubelet) containers(pod *corev1.Pod, claims map[string]*resourceapi.ResourceClaim) map[string][]string {
	k.pods.mu.Lock()
	defer k.pods.mu.Unlock()
	ids := map[string][]string{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, ref := range c.Resources.Claims {
			claim, ok := claims[ref.Name]
			if !ok {
				continue
			}
			for _, d := range k.pods.claims[ClaimOf(claim)].devices {
				if ref.Request == "" || len(d.Requests) == 0 || slices.Contains(d.Requests, ref.Request) {
					ids[c.Name] = append(ids[c.Name], d.CDIDeviceIDs...)
				}
			}
		}
	}
	return ids
}

// UnpreparePod does what happens after a pod's containers stopped: claims that no other pod of the node
// holds are unprepared, also such that were never prepared. It does not need the API.
func (k *Kubelet) UnpreparePod(ctx context.Context, pod types.UID) error {
	batches := map[string][]Claim{}
	var last []Claim
	k.pods.mu.Lock()
	for c, h := range k.pods.claims {
		if !slices.Contains(h.pods, pod) {
			continue
		}
		if len(h.pods) > 1 {
			h.pods = slices.DeleteFunc(slices.Clone(h.pods), func(p types.UID) bool { return p == pod })
			k.pods.claims[c] = h
			continue
		}
		last = append(last, c)
		for _, d := range h.drivers {
			batches[d] = append(batches[d], c)
		}
	}
	k.pods.mu.Unlock()
	for driver, batch := range batches {
		result, err := k.Unprepare(ctx, driver, batch...)
		if err != nil {
			return err
		}
		for _, c := range batch {
			if err := result[c.UID]; err != nil {
				return fmt.Errorf("unprepare claim %s/%s: %w", c.Namespace, c.Name, err)
			}
		}
	}
	k.pods.mu.Lock()
	defer k.pods.mu.Unlock()
	for _, c := range last {
		delete(k.pods.claims, c)
	}
	return nil
}

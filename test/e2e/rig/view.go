package rig

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// GPU is a published device, a whole GPU or a partition of one. Attributes that a device lacks
// are zero.
type GPU struct {
	Node   string
	Device string
	// Profile, Parent and Start are a partition's: its kind, the UUID of its GPU, and its first
	// memory slice. A partition has a UUID of its own only if it is there whoever uses it.
	Profile, Parent string
	Start           int64

	UUID, Product, Capability string
	// Domain names the NVLink domain; DomainSize counts its members on the node.
	Domain     string
	DomainSize int64
	PCI, Root  string
	// NUMA is -1 where the device has none.
	NUMA   int64
	Memory resource.Quantity
	// Taints are the device's, as "key=value:effect".
	Taints []string
	// Claim and Request are set by Given.
	Claim, Request string
	Admin          bool
}

// GPUs returns the whole GPUs of every complete pool of the driver, in the published order.
func GPUs(ctx context.Context, client kubernetes.Interface) ([]GPU, error) {
	all, err := Devices(ctx, client)
	return slices.DeleteFunc(all, func(g GPU) bool { return g.Parent != "" }), err
}

// Devices returns whole GPUs and partitions.
func Devices(ctx context.Context, client kubernetes.Interface) ([]GPU, error) {
	list, err := Slices(ctx, client)
	if err != nil {
		return nil, err
	}
	return devices(list), nil
}

// Slices returns the driver's slices.
func Slices(ctx context.Context, client kubernetes.Interface) ([]resourceapi.ResourceSlice, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + Driver,
	})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	return list.Items, nil
}

// devices reads the pools that are complete.
func devices(all []resourceapi.ResourceSlice) []GPU {
	newest := map[string]int64{}
	for _, s := range all {
		newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	pools := map[string][]resourceapi.ResourceSlice{}
	for _, s := range all {
		if s.Spec.Pool.Generation == newest[s.Spec.Pool.Name] {
			pools[s.Spec.Pool.Name] = append(pools[s.Spec.Pool.Name], s)
		}
	}
	var gpus []GPU
	for _, pool := range pools {
		if int64(len(pool)) != pool[0].Spec.Pool.ResourceSliceCount {
			continue
		}
		for _, s := range pool {
			for _, d := range s.Spec.Devices {
				gpus = append(gpus, read(s.Spec.Pool.Name, d))
			}
		}
	}
	slices.SortStableFunc(gpus, func(a, b GPU) int { return cmp.Compare(a.Node, b.Node) })
	return gpus
}

func read(pool string, d resourceapi.Device) GPU {
	text := func(name string) string {
		a := d.Attributes[resourceapi.QualifiedName(name)]
		switch {
		case a.StringValue != nil:
			return *a.StringValue
		case a.VersionValue != nil:
			return *a.VersionValue
		default:
			return ""
		}
	}
	number := func(name string, otherwise int64) int64 {
		if a := d.Attributes[resourceapi.QualifiedName(name)]; a.IntValue != nil {
			return *a.IntValue
		}
		return otherwise
	}
	var taints []string
	for _, t := range d.Taints {
		taints = append(taints, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return GPU{
		Taints: taints,
		Node:   pool, Device: d.Name, Profile: text("profile"), Parent: text("parentUUID"), Start: number("migPlacementStart", 0),
		UUID: text("uuid"), Product: text("productName"), Capability: text("cudaComputeCapability"),
		Domain: text("nvlinkDomain"), DomainSize: number("nvlinkDomainSize", 0),
		PCI: text("resource.kubernetes.io/pciBusID"), Root: text("resource.kubernetes.io/pcieRoot"),
		NUMA: number("resource.kubernetes.io/numaNode", -1), Memory: d.Capacity["memory"].Value,
	}
}

// ClaimNames are the names of the pod's claims, the one that an extended resource made included.
// A claim that is not made yet is left out.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	return names
}

// Given returns the GPUs and partitions that the scheduler gave to the pod's claims.
func Given(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) ([]GPU, error) {
	published, err := Devices(ctx, client)
	if err != nil {
		return nil, err
	}
	var gpus []GPU
	for _, name := range ClaimNames(pod) {
		claim, err := client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("claim of pod %s: %w", pod.Name, err)
		}
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("claim %s of pod %s is not allocated", name, pod.Name)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			i := slices.IndexFunc(published, func(g GPU) bool { return g.Node == result.Pool && g.Device == result.Device })
			if i < 0 {
				return nil, fmt.Errorf("claim %s was given %s/%s, which is not published", name, result.Pool, result.Device)
			}
			gpu := published[i]
			gpu.Claim, gpu.Request = name, result.Request
			gpu.Admin = result.AdminAccess != nil && *result.AdminAccess
			gpus = append(gpus, gpu)
		}
	}
	return gpus, nil
}

// UUIDs are those of the GPUs, sorted.
func UUIDs(gpus []GPU) []string {
	uuids := make([]string, 0, len(gpus))
	for _, g := range gpus {
		uuids = append(uuids, g.UUID)
	}
	slices.Sort(uuids)
	return uuids
}

// Domains are the NVLink domains of the GPUs, sorted, each once; "" for one in none.
func Domains(gpus []GPU) []string {
	var domains []string
	for _, g := range gpus {
		domains = append(domains, g.Domain)
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

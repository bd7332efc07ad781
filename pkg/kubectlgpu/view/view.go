// Package view shows what GPUs a cluster has: a list, a tree, one of them in full, and totals. It
// is for the commands get, tree and describe. It is pure, and must not know where the objects come
// from.
package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// GPU is one physical GPU, as far as its devices tell.
type GPU struct {
	Node    string `json:"node"`
	Name    string `json:"name"`
	PCI     string `json:"pciBusID,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	// Memory is in bytes.
	Memory int64  `json:"memory,omitempty"`
	NUMA   string `json:"numaNode,omitempty"`
	Root   string `json:"pcieRoot,omitempty"`
	// Domain is the NVLink domain, DomainSize its members at full health.
	Domain     string `json:"nvlinkDomain,omitempty"`
	DomainSize string `json:"nvlinkDomainSize,omitempty"`
	// Whole is the GPU as one device; nil while only its partitions are offered.
	Whole *Device `json:"device,omitempty"`
	// Partitions are its MIG devices, also those that are made when a claim gets them.
	Partitions []Device `json:"partitions,omitempty"`
}

// Device is one thing that a claim can be given.
type Device struct {
	Driver string        `json:"driver"`
	Pool   string        `json:"pool"`
	Name   string        `json:"name"`
	Type   string        `json:"type"`
	Free   bool          `json:"free"`
	Owners []state.Owner `json:"owners,omitempty"`
	// Blocked says which device in use takes what this one needs.
	Blocked string `json:"blockedBy,omitempty"`
	// Taints are "key=value:Effect".
	Taints []string `json:"taints,omitempty"`
	// Sharing says how tenants are kept apart on a device that several claims can have.
	Sharing string `json:"sharing,omitempty"`
	Profile string `json:"profile,omitempty"`
	Memory  int64  `json:"memory,omitempty"`
	UUID    string `json:"uuid,omitempty"`

	source state.Device
}

// whole devices of shared GPUs have a type of their own; everything that is not a partition counts
// as a GPU.
const partition = "mig"

// GPUs gathers the devices of a driver by GPU, sorted by node and bus; all drivers when it is empty.
func GPUs(s *state.State, driver string) []GPU {
	type key struct{ node, gpu string }
	found := map[key]*GPU{}
	var order []key
	for _, d := range s.Devices() {
		if driver != "" && d.Driver != driver {
			continue
		}
		k := key{cmp.Or(d.Node, d.Pool), cmp.Or(bus(d), d.Text("parentUUID"), d.Name)}
		gpu := found[k]
		if gpu == nil {
			gpu = &GPU{Node: k.node}
			found[k] = gpu
			order = append(order, k)
		}
		gpu.add(d)
	}
	out := make([]GPU, 0, len(order))
	for _, k := range order {
		out = append(out, *found[k])
	}
	slices.SortStableFunc(out, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func bus(d state.Device) string {
	return d.Text("resource.kubernetes.io/pciBusID")
}

func (g *GPU) add(d state.Device) {
	shown := show(d)
	g.PCI = cmp.Or(g.PCI, bus(d))
	g.Product = cmp.Or(g.Product, d.Text("productName"))
	g.NUMA = cmp.Or(g.NUMA, d.Text("resource.kubernetes.io/numaNode"))
	g.Root = cmp.Or(g.Root, d.Text("resource.kubernetes.io/pcieRoot"))
	if shown.Type == partition {
		g.Partitions = append(g.Partitions, shown)
		g.UUID = cmp.Or(g.UUID, d.Text("parentUUID"))
		g.Name = cmp.Or(g.Name, wholeName(d), d.Text("parentUUID"), d.Name)
		return
	}
	g.Name, g.Whole, g.Memory = d.Name, &shown, shown.Memory
	g.UUID = cmp.Or(d.Text("uuid"), g.UUID)
	g.Domain, g.DomainSize = d.Text("nvlinkDomain"), d.Text("nvlinkDomainSize")
}

// wholeName is what the GPU of a partition is called where it is offered whole; empty where the name of
// the partition does not tell.
func wholeName(d state.Device) string {
	name, _, ok := strings.Cut(d.Name, "-mig-")
	if !ok {
		return ""
	}
	return name
}

func show(d state.Device) Device {
	memory := d.Capacity("memory")
	out := Device{
		Driver: d.Driver, Pool: d.Pool, Name: d.Name, Type: cmp.Or(d.Kind(), "device"), Free: d.Free(), Owners: d.Owners, Blocked: d.Blocked,
		Profile: d.Text("profile"), Memory: memory.Value(), UUID: d.Text("uuid"), source: d,
	}
	for _, t := range d.Spec.Taints {
		out.Taints = append(out.Taints, taint(t))
	}
	if d.Shared() {
		out.Sharing = cmp.Or(d.Text("sharingEnforcement"), "shared")
	}
	return out
}

// used tells that a claim has the device, whatever for.
func (d Device) used() bool { return len(d.Owners) > 0 }

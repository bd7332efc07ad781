package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// ID names a device in a cluster.
type ID struct{ Driver, Pool, Name string }

func (i ID) String() string { return i.Driver + "/" + i.Pool + "/" + i.Name }

// Device is a published device and who has it.
type Device struct {
	ID
	// Node is empty for a device that several nodes reach.
	Node string
	// Spec is the device as published, with the taints of DeviceTaintRules added.
	Spec resourceapi.Device
	// Owners are the claims that were given it. One that is shared has several.
	Owners []Owner
	// Blocked says which device in use takes what this one needs of the counters that they share;
	// empty when none does.
	Blocked string
}

// Owner is a claim that was given a device.
type Owner struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	// Pods are those that the claim is reserved for.
	Pods    []string `json:"pods,omitempty"`
	Request string   `json:"request"`
	// Admin tells that it has the device for looking only: the device stays free for others.
	Admin bool `json:"admin,omitempty"`
	// Capacity is what it has of a shared device.
	Capacity map[string]string `json:"capacity,omitempty"`
}

// String gives "namespace/claim → pod, pod".
func (o Owner) String() string {
	s := o.Namespace + "/" + o.Claim
	if len(o.Pods) > 0 {
		s += " → " + strings.Join(o.Pods, ", ")
	}
	if o.Admin {
		s += " (admin access)"
	}
	return s
}

// attribute finds an attribute, whether its name is bare or has the driver's domain.
func (d Device) attribute(name string) (resourceapi.DeviceAttribute, bool) {
	if v, ok := d.Spec.Attributes[resourceapi.QualifiedName(name)]; ok {
		return v, true
	}
	v, ok := d.Spec.Attributes[resourceapi.QualifiedName(d.Driver+"/"+name)]
	return v, ok
}

// Text gives an attribute's value as text; empty when there is none.
func (d Device) Text(name string) string {
	v, ok := d.attribute(name)
	if !ok {
		return ""
	}
	return TextOf(v)
}

// TextOf gives the value of an attribute as text.
func TextOf(v resourceapi.DeviceAttribute) string {
	switch {
	case v.StringValue != nil:
		return *v.StringValue
	case v.VersionValue != nil:
		return *v.VersionValue
	case v.IntValue != nil:
		return fmt.Sprint(*v.IntValue)
	case v.BoolValue != nil:
		return fmt.Sprint(*v.BoolValue)
	case v.StringValues != nil:
		return strings.Join(v.StringValues, ",")
	case v.IntValues != nil:
		return strings.Trim(fmt.Sprint(v.IntValues), "[]")
	}
	return ""
}

// Capacity gives a capacity; zero when there is none.
func (d Device) Capacity(name string) resource.Quantity {
	if c, ok := d.Spec.Capacity[resourceapi.QualifiedName(name)]; ok {
		return c.Value
	}
	return d.Spec.Capacity[resourceapi.QualifiedName(d.Driver+"/"+name)].Value
}

// Kind is "gpu", "mig" or what else the driver calls it.
func (d Device) Kind() string { return d.Text("type") }

// Shared tells that several claims can have the device at once.
func (d Device) Shared() bool { return ptr.Deref(d.Spec.AllowMultipleAllocations, false) }

// Exclusive gives the owners that keep others from the device.
func (d Device) Exclusive() []Owner {
	return slices.DeleteFunc(slices.Clone(d.Owners), func(o Owner) bool { return o.Admin })
}

// Repelling are the taints that keep claims without a toleration away.
func (d Device) Repelling() []resourceapi.DeviceTaint {
	return slices.DeleteFunc(slices.Clone(d.Spec.Taints), func(t resourceapi.DeviceTaint) bool {
		return t.Effect == resourceapi.DeviceTaintEffectNone
	})
}

// Free tells that a claim for the whole device would get it now.
func (d Device) Free() bool {
	return len(d.Exclusive()) == 0 && len(d.Repelling()) == 0 && d.Blocked == ""
}

// Devices are all devices of the newest generation of each pool, in the scheduler's order: by the
// name of the slice, then as published.
func (s *State) Devices() []Device {
	owners := s.owners()
	var out []Device
	for _, slice := range s.Newest() {
		for _, spec := range slice.Spec.Devices {
			d := Device{
				ID:   ID{Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name, Name: spec.Name},
				Node: ptr.Deref(slice.Spec.NodeName, ptr.Deref(spec.NodeName, "")), Spec: *spec.DeepCopy(),
			}
			d.Spec.Taints = append(d.Spec.Taints, s.ruled(d.ID)...)
			d.Owners = owners[d.ID]
			out = append(out, d)
		}
	}
	counters := s.CountersOf(out)
	for i := range out {
		out[i].Blocked = counters.blocks(out[i])
	}
	return out
}

// ruled are the taints that rules add to a device.
func (s *State) ruled(id ID) []resourceapi.DeviceTaint {
	var out []resourceapi.DeviceTaint
	for _, rule := range s.TaintRules {
		selects := rule.Spec.DeviceSelector
		if selects == nil {
			continue
		}
		matches := func(want *string, have string) bool { return want == nil || *want == have }
		if matches(selects.Driver, id.Driver) && matches(selects.Pool, id.Pool) && matches(selects.Device, id.Name) {
			out = append(out, rule.Spec.Taint)
		}
	}
	return out
}

// Tainted gives the newest slices with the taints of rules added: what the scheduler sees.
func (s *State) Tainted() []*resourceapi.ResourceSlice {
	newest := s.Newest()
	if len(s.TaintRules) == 0 {
		return newest
	}
	out := make([]*resourceapi.ResourceSlice, len(newest))
	for i, slice := range newest {
		out[i] = slice.DeepCopy()
		for j := range out[i].Spec.Devices {
			d := &out[i].Spec.Devices[j]
			d.Taints = append(d.Taints, s.ruled(ID{Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name, Name: d.Name})...)
		}
	}
	return out
}

// owners tells who was given each device.
func (s *State) owners() map[ID][]Owner {
	out := map[ID][]Owner{}
	for _, claim := range s.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			owner := Owner{
				Namespace: claim.Namespace, Claim: claim.Name, Request: r.Request,
				Admin: ptr.Deref(r.AdminAccess, false), Pods: consumers(claim),
			}
			for _, name := range slices.Sorted(maps.Keys(r.ConsumedCapacity)) {
				if owner.Capacity == nil {
					owner.Capacity = map[string]string{}
				}
				amount := r.ConsumedCapacity[name]
				owner.Capacity[string(name)] = amount.String()
			}
			id := ID{Driver: r.Driver, Pool: r.Pool, Name: r.Device}
			out[id] = append(out[id], owner)
		}
	}
	return out
}

// consumers are the pods that a claim is reserved for.
func consumers(claim *resourceapi.ResourceClaim) []string {
	var out []string
	for _, c := range claim.Status.ReservedFor {
		if c.APIGroup == corev1.GroupName && c.Resource == "pods" {
			out = append(out, c.Name)
		}
	}
	return out
}

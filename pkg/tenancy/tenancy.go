package tenancy

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
)

// Device is a device that at least one claim has. Its members are those of the endpoint's documents.
type Device struct {
	// Name is the device's in the node's pool.
	Name string `json:"name"`
	// Type is "gpu" or "mig", as published.
	Type string `json:"type"`
	// UUID is NVML's, of the GPU or of the partition as it is now; empty where that is not known.
	UUID string `json:"uuid,omitzero"`
	// ParentUUID and Profile are of partitions.
	ParentUUID string `json:"parentUUID,omitzero"`
	Profile    string `json:"profile,omitzero"`
	PCIBusID   string `json:"pciBusID"`
	// GPUInstance and ComputeInstance are NVML's ids of a partition's instances.
	GPUInstance     *int `json:"gpuInstance,omitzero"`
	ComputeInstance *int `json:"computeInstance,omitzero"`
	// Claims are those that have it, or a share of it.
	Claims []Claim `json:"claims"`
}

// Claim is a claim's part in a device.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Request is the one of the claim that the device was allocated for.
	Request string `json:"request"`
	// ShareID and MemoryBytes are of a device that several claims share.
	ShareID     types.UID `json:"shareID,omitzero"`
	MemoryBytes int64     `json:"memoryBytes,omitzero"`
	// AdminAccess tells that it watches the device and does not own it.
	AdminAccess bool `json:"adminAccess,omitzero"`
	// Pods use the claim, as far as is known. They are in its namespace.
	Pods []Pod `json:"pods"`
}

// Pod names a pod in its claim's namespace.
type Pod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Of puts together what records of claims, the node's devices by name, and what is known of the
// claims' pods say. Claims that are not, or no longer, prepared have nothing. It is pure; devices
// come by name, their claims by namespace, name and request.
func Of(records []*journal.Record, devices map[string]device.Device, pods func(types.UID) []Pod) []Device {
	found := map[string]*Device{}
	for _, r := range records {
		if r.State != journal.StatePrepared {
			continue
		}
		for _, d := range r.Devices {
			if found[d.Name] == nil {
				found[d.Name] = &Device{Name: d.Name, Type: d.Kind, PCIBusID: d.PCI.String()}
			}
			found[d.Name].describe(d, devices[d.Name])
			c := Claim{
				Namespace: r.Namespace, Name: r.Name, UID: r.UID, Request: d.Request,
				MemoryBytes: d.MemoryBytes, AdminAccess: d.AdminAccess, Pods: pods(r.UID),
			}
			if d.ShareID != nil {
				c.ShareID = *d.ShareID
			}
			found[d.Name].Claims = append(found[d.Name].Claims, c)
		}
	}
	out := make([]Device, 0, len(found))
	for _, d := range found {
		slices.SortFunc(d.Claims, func(a, b Claim) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID),
				cmp.Compare(a.Request, b.Request), cmp.Compare(a.ShareID, b.ShareID))
		})
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// describe fills in what a claim's record and the device of this moment say. A record that made the
// instance knows it best; one with admin access may know nothing of it.
func (d *Device) describe(r journal.Device, now device.Device) {
	if r.Kind != string(device.KindMIG) {
		d.UUID = cmp.Or(d.UUID, r.GPUUUID)
		return
	}
	d.ParentUUID = cmp.Or(d.ParentUUID, r.GPUUUID)
	if profile, _, err := mig.ParseKey(r.Partition); err == nil {
		d.Profile = profile
	}
	if gi, ci, uuid, made := migsteps.Made(r.Steps); made {
		d.UUID, d.GPUInstance, d.ComputeInstance = uuid, &gi, &ci
		return
	}
	part, ok := now.(device.MIG)
	if !ok || d.UUID != "" || part.UUID() == "" {
		return
	}
	there := part.Instance()
	d.UUID, d.GPUInstance, d.ComputeInstance = part.UUID(), &there.ID, &there.Compute[0].ID
}

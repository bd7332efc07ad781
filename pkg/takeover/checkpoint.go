package takeover

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// FileName is that of the other driver's checkpoint, in its data directory.
const FileName = "checkpoint.json"

// Checkpoint is what is used of the file.
type Checkpoint struct {
	// BootID is of the boot in which the claims were prepared; "" where an old release wrote it.
	BootID string
	// Claims are sorted by UID.
	Claims []Claim
}

// Claim is one that was prepared, in part or whole.
type Claim struct {
	claims.Ref
	Devices []Device
}

// Device is one of a claim's.
type Device struct {
	Request     string
	Pool        string
	Name        string
	ShareID     *types.UID
	AdminAccess bool
	// UUID is the GPU's or the partition's, "" where it is not known.
	UUID string
}

// file is the layout of version 2. Its checksum is not looked at: it is over what that driver's
// own types made of the file, which differs between its releases. Version 1 has the same claims
// without their names.
type file struct {
	V1 *version `json:"v1"`
	V2 *version `json:"v2"`
}

type version struct {
	PreparedClaims map[string]preparedClaim `json:"preparedClaims"`
	NodeBootID     string                   `json:"nodeBootID"`
}

type preparedClaim struct {
	Status          resourceapi.ResourceClaimStatus `json:"status"`
	PreparedDevices []*struct {
		Devices []map[string]*preparedDevice `json:"devices"`
	} `json:"preparedDevices"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type preparedDevice struct {
	// Info is of a GPU, Concrete of a partition: their members differ between releases.
	Info     json.RawMessage `json:"info"`
	Concrete json.RawMessage `json:"concrete"`
	Device   *struct {
		Requests   []string
		PoolName   string
		DeviceName string
		ShareID    *types.UID
	} `json:"device"`
}

// Parse reads a checkpoint. driver and pool are what its claims' results must name: a claim may
// have devices of other drivers and nodes, which are nobody's business here.
func Parse(data []byte, driver, pool string) (Checkpoint, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return Checkpoint{}, fmt.Errorf("decode the checkpoint of the other driver: %w", err)
	}
	v := f.V2
	if v == nil {
		v = f.V1
	}
	if v == nil {
		return Checkpoint{}, fmt.Errorf("the checkpoint of the other driver has neither a version 1 nor 2")
	}
	c := Checkpoint{BootID: v.NodeBootID}
	for _, uid := range slices.Sorted(maps.Keys(v.PreparedClaims)) {
		if journal.CheckUID(types.UID(uid)) != nil {
			continue
		}
		p := v.PreparedClaims[uid]
		claim := Claim{Ref: claims.Ref{Namespace: p.Namespace, Name: p.Name, UID: types.UID(uid)}, Devices: p.devices(driver, pool)}
		if len(claim.Devices) > 0 {
			c.Claims = append(c.Claims, claim)
		}
	}
	return c, nil
}

// devices come from the allocation where there is one, since that says what is the driver's and
// what owns its device; else from what was prepared.
func (p preparedClaim) devices(driver, pool string) []Device {
	prepared := p.prepared()
	if p.Status.Allocation == nil {
		return slices.DeleteFunc(prepared, func(d Device) bool { return d.Pool != pool })
	}
	var out []Device
	for _, r := range p.Status.Allocation.Devices.Results {
		if r.Driver != driver || r.Pool != pool {
			continue
		}
		d := Device{
			Request: r.Request, Pool: r.Pool, Name: r.Device, ShareID: r.ShareID,
			AdminAccess: r.AdminAccess != nil && *r.AdminAccess,
		}
		if i := slices.IndexFunc(prepared, func(p Device) bool { return p.Name == d.Name && p.Pool == d.Pool }); i >= 0 {
			d.UUID = prepared[i].UUID
		}
		out = append(out, d)
	}
	return out
}

func (p preparedClaim) prepared() []Device {
	var out []Device
	for _, group := range p.PreparedDevices {
		if group == nil {
			continue
		}
		for _, kinds := range group.Devices {
			for _, d := range kinds {
				if d == nil || d.Device == nil || d.Device.DeviceName == "" {
					continue
				}
				found := Device{Pool: d.Device.PoolName, Name: d.Device.DeviceName, ShareID: d.Device.ShareID}
				found.UUID = uuidIn(d.Concrete, "MIG-")
				if found.UUID == "" {
					found.UUID = uuidIn(d.Info, "GPU-")
				}
				if len(d.Device.Requests) > 0 {
					found.Request = d.Device.Requests[0]
				}
				out = append(out, found)
			}
		}
	}
	return out
}

// uuidIn finds the value that is a UUID of that kind, whatever the member is called.
func uuidIn(object json.RawMessage, prefix string) string {
	var members map[string]any
	if err := json.Unmarshal(object, &members); err != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if text, ok := members[name].(string); ok && strings.HasPrefix(text, prefix) {
			return text
		}
	}
	return ""
}

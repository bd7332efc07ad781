package takeover

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// withUUID is a device that exists: a whole GPU or a partition.
type withUUID interface{ UUID() string }

// minored is a device with a node of its own.
type minored interface{ Minor() int }

// Records makes our records of the other driver's claims. devices are those that the node has
// now, by our names. whole are the claims whose devices are all there, parts are those of which
// some are, and missing says what is not there. When a claim was prepared is not known and left
// out: its programs may have begun long ago.
func (c Checkpoint) Records(devices map[string]device.Device, bootID string) (whole, parts []*journal.Record, missing []error) {
	boot := c.BootID
	if boot == "" {
		boot = bootID
	}
	for _, claim := range c.Claims {
		r := &journal.Record{
			Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			State: journal.StatePrepared, BootID: boot,
		}
		for _, d := range claim.Devices {
			found := find(d, devices, boot == bootID)
			if found == nil {
				missing = append(missing, fmt.Errorf("claim %s/%s (UID %s): its device %s (%s) is not on this node",
					claim.Namespace, claim.Name, claim.UID, d.Name, d.UUID))
				continue
			}
			id := found.Identity()
			r.Devices = append(r.Devices, journal.Device{
				Request: d.Request, Pool: d.Pool, Name: found.Name(), Was: d.Name, ShareID: d.ShareID, AdminAccess: d.AdminAccess,
				Kind: string(found.Kind()), PCI: id.PCI, GPUUUID: id.GPUUUID, Partition: id.Partition,
			})
		}
		switch len(r.Devices) {
		case len(claim.Devices):
			whole = append(whole, r)
		case 0:
		default:
			parts = append(parts, r)
		}
	}
	return whole, parts, missing
}

// find looks for a device by its UUID. Only where there is none, the number in the name of a whole
// GPU is taken, which is its minor number, as long as the machine was not booted since.
func find(d Device, devices map[string]device.Device, sameBoot bool) device.Device {
	number, err := strconv.Atoi(strings.TrimPrefix(d.Name, "gpu-"))
	byMinor := d.UUID == "" && sameBoot && err == nil && strings.HasPrefix(d.Name, "gpu-")
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		candidate := devices[name]
		if u, ok := candidate.(withUUID); ok && d.UUID != "" && u.UUID() == d.UUID {
			return candidate
		}
		if m, ok := candidate.(minored); ok && byMinor && m.Minor() == number {
			return candidate
		}
	}
	return nil
}

// Rename gives the claim with our names in place of the other driver's, as the claim's record
// has them; the claim itself where there is nothing to rename.
func Rename(claim *resourceapi.ResourceClaim, record *journal.Record, driver string) *resourceapi.ResourceClaim {
	if claim.Status.Allocation == nil {
		return claim
	}
	renamed := claim.DeepCopy()
	for i := range renamed.Status.Allocation.Devices.Results {
		r := &renamed.Status.Allocation.Devices.Results[i]
		for _, d := range record.Devices {
			if r.Driver == driver && r.Pool == d.Pool && d.Was != "" && r.Device == d.Was {
				r.Device = d.Name
				break
			}
		}
	}
	return renamed
}

// Taken are the devices that claims of the other driver still have.
type Taken []journal.Device

// TakenBy lists them from the records.
func TakenBy(records []*journal.Record) Taken {
	var taken Taken
	for _, r := range records {
		for _, d := range r.Devices {
			if d.Was != "" && !d.AdminAccess {
				taken = append(taken, d)
			}
		}
	}
	return taken
}

// Taint is for whoever looks at a slice: why nothing is scheduled to a device.
func (t Taken) Taint(driver string) func(device.Device) []resourceapi.DeviceTaint {
	return func(d device.Device) []resourceapi.DeviceTaint {
		for _, of := range t {
			if d.Overlaps(device.Identity{PCI: of.PCI, GPUUUID: of.GPUUUID, Partition: of.Partition}) {
				return []resourceapi.DeviceTaint{{Key: driver + "/taken-over", Value: "claim-of-former-driver", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
		return nil
	}
}

// Planner understands the other driver's names in the claims that were taken over.
type Planner struct {
	Plans interface {
		Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error)
	}
	Load   func(claim claims.Ref) (*journal.Record, error)
	Driver string
}

// Plan plans a claim.
func (p Planner) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	plan, err := p.Plans.Plan(claim)
	if err == nil {
		return plan, nil
	}
	record, loadErr := p.Load(claims.Ref{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID})
	if loadErr != nil || len(TakenBy([]*journal.Record{record})) == 0 {
		return plan, err
	}
	return p.Plans.Plan(Rename(claim, record, p.Driver))
}

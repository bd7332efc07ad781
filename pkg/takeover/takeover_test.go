package takeover_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/takeover"
)

const driver, pool = "gpu.nvidia.com", "node-1"

func golden(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/v2.json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParse(t *testing.T) {
	got, err := takeover.Parse(golden(t), driver, pool)
	if err != nil {
		t.Fatal(err)
	}
	share := types.UID("s")
	want := takeover.Checkpoint{BootID: "boot-1", Claims: []takeover.Claim{
		{Ref: claims.Ref{UID: "u-gpu"}, Devices: []takeover.Device{{Request: "gpus", Pool: pool, Name: "gpu-3", UUID: "GPU-a"}}},
		{Ref: claims.Ref{Namespace: "team", Name: "part", UID: "u-mig"}, Devices: []takeover.Device{
			{Request: "mig/small", Pool: pool, Name: "gpu-0-mig-1g10gb-19-0", ShareID: &share, UUID: "MIG-b"},
			{Request: "look", Pool: pool, Name: "gpu-1", AdminAccess: true},
		}},
		{Ref: claims.Ref{Namespace: "team", Name: "begun", UID: "u-started"}, Devices: []takeover.Device{{Request: "r", Pool: pool, Name: "gpu-2"}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The first version has no names and no boot.
	old := strings.Replace(string(golden(t)), `"v2"`, `"v3"`, 1)
	if got, err := takeover.Parse([]byte(old), driver, pool); err != nil || len(got.Claims) != 0 || got.BootID != "" {
		t.Errorf("version 1: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "[]", "{}", `{"v2":{"preparedClaims":[]}}`} {
		if _, err := takeover.Parse([]byte(bad), driver, pool); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(golden(f))
	f.Add([]byte(`{"v2":{"preparedClaims":{"u":{"preparedDevices":[{"devices":[{"gpu":{"info":[],"device":{}}}]}]}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := takeover.Parse(data, driver, pool)
		if err != nil {
			return
		}
		records, parts, missing := c.Records(nil, "boot")
		if len(records)+len(parts) > 0 || len(missing) < len(c.Claims) {
			t.Errorf("%d records and %d missing on a node without devices", len(records), len(missing))
		}
		for _, claim := range c.Claims {
			if journal.CheckUID(claim.UID) != nil || len(claim.Devices) == 0 {
				t.Errorf("claim %+v", claim)
			}
		}
	})
}

// board is a device that exists.
type board struct {
	name, uuid string
	bus        uint8
	minor      int
}

func (b board) Name() string                    { return b.name }
func (board) Kind() device.Kind                 { return device.KindGPU }
func (b board) UUID() string                    { return b.uuid }
func (b board) Minor() int                      { return b.minor }
func (b board) at() pci.Address                 { return pci.Address{Bus: b.bus} }
func (b board) Identity() device.Identity       { return device.Identity{PCI: b.at(), GPUUUID: b.uuid} }
func (b board) Overlaps(o device.Identity) bool { return o.PCI == b.at() }
func (b board) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	return resourceapi.Device{}, nil
}

func node() map[string]device.Device {
	return map[string]device.Device{
		"gpu-a": board{"gpu-a", "GPU-a", 1, 3}, "gpu-b": board{"gpu-b", "MIG-b", 2, 7}, "gpu-c": board{"gpu-c", "GPU-c", 3, 2}, "gpu-d": board{"gpu-d", "GPU-d", 4, 1},
	}
}

func TestRecords(t *testing.T) {
	c, err := takeover.Parse(golden(t), driver, pool)
	if err != nil {
		t.Fatal(err)
	}
	records, parts, missing := c.Records(node(), "boot-1")
	if len(missing)+len(parts) > 0 {
		t.Error(missing, parts)
	}
	share := types.UID("s")
	want := []*journal.Record{
		{UID: "u-gpu", State: journal.StatePrepared, BootID: "boot-1", Devices: []journal.Device{
			{Request: "gpus", Pool: pool, Name: "gpu-a", Was: "gpu-3", Kind: "gpu", PCI: pci.Address{Bus: 1}, GPUUUID: "GPU-a"},
		}},
		{Namespace: "team", Name: "part", UID: "u-mig", State: journal.StatePrepared, BootID: "boot-1", Devices: []journal.Device{
			{Request: "mig/small", Pool: pool, Name: "gpu-b", Was: "gpu-0-mig-1g10gb-19-0", ShareID: &share, Kind: "gpu", PCI: pci.Address{Bus: 2}, GPUUUID: "MIG-b"},
			{Request: "look", Pool: pool, Name: "gpu-d", Was: "gpu-1", AdminAccess: true, Kind: "gpu", PCI: pci.Address{Bus: 4}, GPUUUID: "GPU-d"},
		}},
		{Namespace: "team", Name: "begun", UID: "u-started", State: journal.StatePrepared, BootID: "boot-1", Devices: []journal.Device{
			{Request: "r", Pool: pool, Name: "gpu-c", Was: "gpu-2", Kind: "gpu", PCI: pci.Address{Bus: 3}, GPUUUID: "GPU-c"},
		}},
	}
	if diff := cmp.Diff(want, records); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// After a reboot minor numbers say nothing: only what has a UUID is found.
	records, parts, missing = c.Records(node(), "boot-2")
	if len(records) != 1 || len(parts) != 1 || len(missing) != 2 || records[0].BootID != "boot-1" {
		t.Errorf("after a reboot: %d records, %d parts, %v", len(records), len(parts), missing)
	}
}

func TestTaken(t *testing.T) {
	c, _ := takeover.Parse(golden(t), driver, pool)
	records, _, _ := c.Records(node(), "boot-1")
	taken := takeover.TakenBy(append(records, &journal.Record{Devices: []journal.Device{{Name: "gpu-d", PCI: pci.Address{Bus: 4}}}}))
	for name, want := range map[string]int{"gpu-a": 1, "gpu-b": 1, "gpu-c": 1, "gpu-d": 0} {
		taints := taken.Taint(driver)(node()[name])
		if len(taints) != want || want > 0 && (taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule || taints[0].Key != driver+"/taken-over") {
			t.Errorf("%s: %+v", name, taints)
		}
	}
}

// plans knows our names only.
type plans struct{ asked []string }

func (p *plans) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		p.asked = append(p.asked, r.Device)
		if r.Driver == driver && node()[r.Device] == nil {
			return claims.Plan{}, errors.New("unknown device " + r.Device)
		}
	}
	return claims.Plan{Claim: claims.Ref{UID: claim.UID}}, nil
}

func TestPlanner(t *testing.T) {
	c, _ := takeover.Parse(golden(t), driver, pool)
	records, _, _ := c.Records(node(), "boot-1")
	inner := &plans{}
	p := takeover.Planner{Plans: inner, Driver: driver, Load: func(claim claims.Ref) (*journal.Record, error) {
		for _, r := range records {
			if r.UID == claim.UID {
				return r, nil
			}
		}
		return nil, journal.ErrNotFound
	}}
	claim := func(uid types.UID, names ...string) *resourceapi.ResourceClaim {
		out := &resourceapi.ResourceClaim{}
		out.UID, out.Status.Allocation = uid, &resourceapi.AllocationResult{}
		for _, n := range names {
			d, name, _ := strings.Cut(n, "/")
			out.Status.Allocation.Devices.Results = append(out.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Driver: d, Pool: pool, Device: name})
		}
		return out
	}
	for _, row := range []struct {
		claim *resourceapi.ResourceClaim
		ok    bool
		asked string
	}{
		{claim("new", driver+"/gpu-c"), true, "gpu-c"},
		{claim("u-gpu", driver+"/gpu-3", "nic.example.com/gpu-3"), true, "gpu-3 gpu-a gpu-3"},
		{claim("u-gpu", driver+"/gpu-8"), false, "gpu-8 gpu-8"},
		{claim("new", driver+"/gpu-3"), false, "gpu-3"},
	} {
		inner.asked = nil
		_, err := p.Plan(row.claim)
		if asked := strings.Join(inner.asked, " "); (err == nil) != row.ok || asked != row.asked {
			t.Errorf("claim %s: error %v, asked for %q, want %q", row.claim.UID, err, asked, row.asked)
		}
	}
	if c := (&resourceapi.ResourceClaim{}); takeover.Rename(c, records[0], driver) != c {
		t.Error("a claim without an allocation was copied")
	}
}

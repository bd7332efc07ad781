package memlimit_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/topology"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// driver limits cgroups in memory.
type driver struct {
	mu sync.Mutex
	// lacks is why it cannot, fails why it does not.
	lacks, fails error
	// limits are in MiB, by GPU and directory.
	limits map[inventory.GPUID]map[string]uint64
	checks int
}

func (d *driver) Check(_ context.Context, _ inventory.GPUID, cgroup string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.checks++
	_, err := os.Stat(cgroup)
	return errors.Join(d.lacks, err)
}

func (d *driver) Set(_ context.Context, gpu inventory.GPUID, cgroup string, bytes uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails != nil {
		return d.fails
	}
	if d.limits[gpu] == nil {
		d.limits[gpu] = map[string]uint64{}
	}
	d.limits[gpu][filepath.Base(cgroup)] = bytes >> 20
	return nil
}

// rig is a node with cgroups, records and a driver.
type rig struct {
	t       testing.TB
	driver  *driver
	cgroups string
	config  memlimit.Config
	journal *journal.Store
	sharing *memlimit.Sharing
	devices []device.Device
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // short, for the socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, driver: &driver{limits: map[inventory.GPUID]map[string]uint64{}}, cgroups: filepath.Join(dir, "sys", "fs", "cgroup")}
	must(t, os.MkdirAll(r.cgroups, 0o755))
	must(t, os.WriteFile(filepath.Join(r.cgroups, "cgroup.controllers"), nil, 0o600))
	r.journal, err = journal.Open(filepath.Join(dir, "claims"))
	must(t, err)
	locks, err := lock.Open(filepath.Join(dir, "locks"), lock.Options{})
	must(t, err)
	declared := []shares.Declaration{{Enforcement: device.EnforcedByDriver}}
	r.config = memlimit.Config{
		Limiter: r.driver, SysRoot: filepath.Join(dir, "sys"), Dir: filepath.Join(dir, memlimit.DirName), Hook: "/data/gpu-limit-hook", Boot: "boot-1",
		Journal: r.journal, Locks: locks, Key: prepare.GPUKey, Shares: declared,
	}
	r.sharing = memlimit.New(r.config)
	snapshot := inventorytest.T4()
	r.devices, _ = device.Share(device.FromSnapshot(snapshot, topology.Assignment{}), shares.Of(declared, snapshot))
	return r
}

// share is a claim's n-th device, with so much of the memory of a GPU.
func (r *rig) share(claim string, gpu, n int, mib int64) claims.Device {
	id := types.UID([]string{"share-a", "share-b"}[n])
	return claims.Device{
		Claim:  claims.Ref{Namespace: "team", Name: claim, UID: types.UID("uid-" + claim)},
		Device: r.devices[gpu], ShareID: &id, MemoryBytes: mib << 20,
	}
}

// prepare enters a claim with these devices, as the engine does.
func (r *rig) prepare(devices ...claims.Device) {
	r.t.Helper()
	record := &journal.Record{Namespace: "team", Name: devices[0].Claim.Name, UID: devices[0].Claim.UID, State: journal.StatePrepared, BootID: "boot-1"}
	for _, d := range devices {
		steps, err := r.sharing.Handler.Steps(d)
		must(r.t, err)
		for _, s := range steps {
			_, err := r.sharing.Executor.Do(r.t.Context(), s.Params)
			must(r.t, err)
		}
		id := d.Device.Identity()
		record.Devices = append(record.Devices, journal.Device{
			Name: d.Device.Name(), Kind: string(d.Device.Kind()), PCI: id.PCI, GPUUUID: id.GPUUUID, ShareID: d.ShareID, Steps: steps,
		})
	}
	must(r.t, r.journal.Save(record))
}

// unprepare undoes it.
func (r *rig) unprepare(devices ...claims.Device) {
	r.t.Helper()
	for _, d := range devices {
		steps, err := r.sharing.Handler.Steps(d)
		must(r.t, err)
		for _, s := range steps {
			must(r.t, r.sharing.Executor.Undo(r.t.Context(), s.Params, nil))
			must(r.t, r.sharing.Executor.Undo(r.t.Context(), s.Params, nil))
		}
	}
	must(r.t, r.journal.Delete(devices[0].Claim.UID))
}

// begin makes a container's cgroup, end removes it.
func (r *rig) begin(name string) string {
	r.t.Helper()
	must(r.t, os.MkdirAll(filepath.Join(r.cgroups, "pods", name), 0o755))
	return "/pods/" + name
}

func (r *rig) end(cgroup string) {
	r.t.Helper()
	// It is put aside: the number of a directory that is removed may be the next one's, while that
	// of a cgroup never is.
	aside, err := os.MkdirTemp(filepath.Dir(r.cgroups), "ended")
	must(r.t, err)
	if err := os.Rename(filepath.Join(r.cgroups, cgroup), filepath.Join(aside, "cgroup")); !errors.Is(err, fs.ErrNotExist) {
		must(r.t, err)
	}
}

// request is what a container's hook asks for.
func request(d claims.Device, cgroup string) hook.Request {
	return hook.Request{Version: hook.Version, Claim: string(d.Claim.UID), Device: d.Device.Name(), Share: string(*d.ShareID), Cgroup: cgroup}
}

// has are the limits of a GPU's containers in MiB.
func (r *rig) has(gpu int) map[string]uint64 {
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	id := r.devices[gpu].Identity()
	return r.driver.limits[inventory.GPUID{PCI: id.PCI, UUID: id.GPUUUID}]
}

// left are the notes that there are.
func (r *rig) left() int {
	r.t.Helper()
	things, err := r.sharing.Owner.Things(r.t.Context())
	must(r.t, err)
	return len(things)
}

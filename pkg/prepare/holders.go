package prepare

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// holders is the index from a GPU to the claims on it: <dir>/<pci address>/<claim UID>. Finding
// who is on a GPU so costs one look into its directory, whatever lives on the others. An entry
// counts only while the journal has a record of its claim; it may be left over or, after a loss
// of power, empty, since it is not synced. It repeats what the record says of devices, so that
// ownership survives a record that cannot be read. Changes of a GPU's entries are made under
// the GPU's lock, but for removals of entries whose record is gone.
type holders struct {
	dir     string
	journal Journal
}

func (h *holders) gpuDir(a pci.Address) string { return filepath.Join(h.dir, a.Label()) }

// owned are the devices of a record that exclude other owners.
func owned(r *journal.Record) []journal.Device {
	var devices []journal.Device
	for _, d := range r.Devices {
		if !d.AdminAccess {
			devices = append(devices, d)
		}
	}
	return devices
}

// gpus are the addresses of the record's owned devices, each once, in the record's order.
func gpus(r *journal.Record) []pci.Address {
	var out []pci.Address
	seen := map[pci.Address]bool{}
	for _, d := range owned(r) {
		if !seen[d.PCI] {
			seen[d.PCI] = true
			out = append(out, d.PCI)
		}
	}
	return out
}

// put enters the record's claim at each of its GPUs, with what it has there. Entries that are
// right already are not written.
func (h *holders) put(r *journal.Record) error {
	for _, gpu := range gpus(r) {
		if err := h.putAt(gpu, r); err != nil {
			return fmt.Errorf("enter the claim at GPU %s: %w", gpu, err)
		}
	}
	return nil
}

func (h *holders) putAt(gpu pci.Address, r *journal.Record) error {
	entry := *r
	entry.State, entry.Unknown, entry.Devices = journal.StateStarted, nil, nil
	for _, d := range owned(r) {
		if d.PCI == gpu {
			d.Steps, d.Unknown = nil, nil
			entry.Devices = append(entry.Devices, d)
		}
	}
	data, err := json.Marshal(&entry, json.Deterministic(true))
	if err != nil {
		return err
	}
	path := filepath.Join(h.gpuDir(gpu), string(r.UID))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(h.gpuDir(gpu), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// remove takes the claim's entries away. What cannot be removed does not count any more, since
// its record is gone.
func (h *holders) remove(r *journal.Record) {
	for _, gpu := range gpus(r) {
		_ = os.Remove(filepath.Join(h.gpuDir(gpu), string(r.UID)))
	}
}

// conflict finds a claim other than uid that excludes one of the wanted devices. The caller
// holds the locks of their GPUs.
func (h *holders) conflict(uid types.UID, wanted []claims.Device) (*HeldError, error) {
	for _, gpu := range planGPUs(wanted) {
		entries, err := os.ReadDir(h.gpuDir(gpu))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for holders of GPU %s: %w", gpu, err)
		}
		for _, e := range entries {
			if e.Name() == string(uid) {
				continue
			}
			other, err := h.holder(filepath.Join(h.gpuDir(gpu), e.Name()), types.UID(e.Name()))
			if err != nil {
				return nil, err
			}
			if name := excluded(wanted, other); name != "" {
				return &HeldError{Device: name, Holder: claims.Ref{Namespace: other.Namespace, Name: other.Name, UID: other.UID}}, nil
			}
		}
	}
	return nil, nil
}

// Holders are the claims that have something of a GPU, admin access aside. The caller holds the
// GPU's lock, GPUKey, if the answer is to stay true.
func (e *Engine) Holders(gpu pci.Address) ([]claims.Ref, error) {
	entries, err := os.ReadDir(e.holders.gpuDir(gpu))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for holders of GPU %s: %w", gpu, err)
	}
	var refs []claims.Ref
	for _, entry := range entries {
		r, err := e.holders.holder(filepath.Join(e.holders.gpuDir(gpu), entry.Name()), types.UID(entry.Name()))
		if err != nil {
			return nil, err
		}
		if r != nil {
			refs = append(refs, claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID})
		}
	}
	return refs, nil
}

// holder gives what the entry's claim has; nil when it has nothing, and then the entry is
// removed.
func (h *holders) holder(path string, uid types.UID) (*journal.Record, error) {
	if ours := journal.CheckUID(uid) == nil; !ours {
		return nil, nil
	}
	record, err := h.journal.Load(uid)
	switch {
	case err == nil:
		return record, nil
	case errors.Is(err, journal.ErrNotFound):
		_ = os.Remove(path)
		return nil, nil
	}
	// There is a record that cannot be read: somebody has the GPU. The entry may say what.
	entry, entryErr := readEntry(path, uid)
	if entryErr != nil {
		return nil, fmt.Errorf("a claim with an unreadable record may have the GPU: %w", errors.Join(err, entryErr))
	}
	return entry, nil
}

func readEntry(path string, uid types.UID) (*journal.Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read holder: %w", err)
	}
	return parseEntry(data, uid)
}

func parseEntry(data []byte, uid types.UID) (*journal.Record, error) {
	var r journal.Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode holder of claim %s: %w", uid, err)
	}
	if r.UID != uid {
		return nil, fmt.Errorf("holder %s names claim %q", uid, r.UID)
	}
	return &r, nil
}

// excluded gives the name of a wanted device that the other claim keeps from being owned, ""
// where there is none. Two shares of one device do not exclude each other.
func excluded(wanted []claims.Device, other *journal.Record) string {
	if other == nil {
		return ""
	}
	for _, w := range wanted {
		if w.AdminAccess {
			continue
		}
		for _, o := range owned(other) {
			id := identity(o)
			bothShares := w.ShareID != nil && o.ShareID != nil && w.Device.Identity() == id
			if !bothShares && w.Device.Overlaps(id) {
				return w.Device.Name()
			}
		}
	}
	return ""
}

func identity(d journal.Device) device.Identity {
	return device.Identity{PCI: d.PCI, GPUUUID: d.GPUUUID, Partition: d.Partition}
}

// planGPUs are the addresses of the devices that are owned, each once.
func planGPUs(devices []claims.Device) []pci.Address {
	var out []pci.Address
	seen := map[pci.Address]bool{}
	for _, d := range devices {
		gpu := d.Device.Identity().PCI
		if !d.AdminAccess && !seen[gpu] {
			seen[gpu] = true
			out = append(out, gpu)
		}
	}
	return out
}

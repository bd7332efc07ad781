package nvml

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// The calls that read partitions.
const (
	symGIProfile    = "nvmlDeviceGetGpuInstanceProfileInfoV"
	symGIPlacements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	symGIs          = "nvmlDeviceGetGpuInstances"
	symGIInfo       = "nvmlGpuInstanceGetInfo"
	symMIGCount     = "nvmlDeviceGetMaxMigDeviceCount"
	symMIGByIndex   = "nvmlDeviceGetMigDeviceHandleByIndex"
	symGIID         = "nvmlDeviceGetGpuInstanceId"
	symCIID         = "nvmlDeviceGetComputeInstanceId"
	symAttributes   = "nvmlDeviceGetAttributes_v2"
)

// mostProfiles ends the enumeration of profiles of drivers that never say that it is over.
const mostProfiles = 64

// partitions reads what GPUs can be cut into, and are. Profiles are facts of board and driver:
// they are read once for each pair of those, so that a look at the node stays cheap.
type partitions struct {
	// wanted has readings of the node ask for partitions.
	wanted   bool
	mu       sync.Mutex
	profiles map[profilesKey][]inventory.MIGProfile
}

type profilesKey struct{ uuid, driver string }

// read adds to a board what it says of its partitions. Boards that cannot be partitioned are
// not asked.
func (p *partitions) read(a *session.Asker, d nvml.Device, driver string, b *inventory.Board) {
	if !p.wanted || b.MIG.Err != nil || !b.MIG.Value.Capable || b.UUID.Err != nil {
		return
	}
	b.MIGProfiles = p.of(a, d, profilesKey{b.UUID.Value, driver})
	if b.MIG.Value.Enabled && b.MIGProfiles.Err == nil {
		b.MIGInstances = instances(a, d, b.MIGProfiles.Value)
	}
}

// of gives the profiles of a GPU, from memory where they were read before.
func (p *partitions) of(a *session.Asker, d nvml.Device, key profilesKey) inventory.Fact[[]inventory.MIGProfile] {
	p.mu.Lock()
	known, ok := p.profiles[key]
	p.mu.Unlock()
	if ok {
		return inventory.Known(known)
	}
	read := profiles(a, d)
	if read.Err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.profiles[key] = read.Value
	}
	return read
}

// profiles asks for every profile number that NVML may have, known to us or not. A driver says
// "invalid argument" to numbers that are beyond its own last one.
func profiles(a *session.Asker, d nvml.Device) inventory.Fact[[]inventory.MIGProfile] {
	var out []inventory.MIGProfile
	for number := range mostProfiles {
		info := session.Ask(a, symGIProfile, func() (nvml.GpuInstanceProfileInfo_v2, nvml.Return) {
			return d.GetGpuInstanceProfileInfoV(number).V2()
		})
		switch {
		case session.HasCode(info.Err, nvml.ERROR_INVALID_ARGUMENT) && number >= nvml.GPU_INSTANCE_PROFILE_COUNT:
			return inventory.Known(out)
		case session.HasCode(info.Err, nvml.ERROR_INVALID_ARGUMENT), session.HasCode(info.Err, nvml.ERROR_NOT_SUPPORTED):
			continue
		case info.Err != nil:
			return inventory.Unknown[[]inventory.MIGProfile](info.Err)
		}
		p := profile(info.Value)
		if slices.ContainsFunc(out, func(o inventory.MIGProfile) bool { return o.ID == p.ID }) {
			continue
		}
		places := placements(a, d, info.Value.Id)
		if places.Err != nil {
			return inventory.Unknown[[]inventory.MIGProfile](places.Err)
		}
		p.Placements = places.Value
		out = append(out, p)
	}
	return inventory.Known(out)
}

func profile(info nvml.GpuInstanceProfileInfo_v2) inventory.MIGProfile {
	return inventory.MIGProfile{
		ID:              int(info.Id),
		Name:            strings.TrimPrefix(textOf(info.Name[:]), "MIG "),
		Slices:          int(info.SliceCount),
		MaxInstances:    int(info.InstanceCount),
		MemoryBytes:     info.MemorySizeMB << 20,
		Multiprocessors: int(info.MultiprocessorCount),
		CopyEngines:     int(info.CopyEngineCount),
		Decoders:        int(info.DecoderCount),
		Encoders:        int(info.EncoderCount),
		JPEGEngines:     int(info.JpegCount),
		OFAEngines:      int(info.OfaCount),
	}
}

// placements gives where instances of a profile can be, whatever is there now.
func placements(a *session.Asker, d nvml.Device, profile uint32) inventory.Fact[[]inventory.MIGPlacement] {
	list := session.Ask(a, symGIPlacements, func() ([]nvml.GpuInstancePlacement, nvml.Return) {
		return d.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: profile})
	})
	return convert(list, func(list []nvml.GpuInstancePlacement) ([]inventory.MIGPlacement, error) {
		var out []inventory.MIGPlacement
		for _, p := range list {
			out = append(out, placement(p))
		}
		slices.SortFunc(out, inventory.MIGPlacement.Compare)
		return slices.Compact(out), nil
	})
}

func placement(p nvml.GpuInstancePlacement) inventory.MIGPlacement {
	return inventory.MIGPlacement{Start: int(p.Start), Size: int(p.Size)}
}

// instances lists the GPU instances of a GPU whose mode is on, also those without a compute
// instance, which no MIG device stands for.
func instances(a *session.Asker, d nvml.Device, profiles []inventory.MIGProfile) inventory.Fact[[]inventory.MIGInstance] {
	var out []inventory.MIGInstance
	for _, p := range profiles {
		list := session.Ask(a, symGIs, func() ([]nvml.GpuInstance, nvml.Return) {
			return d.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: uint32(max(p.MaxInstances, 1))})
		})
		if errors.Is(list.Err, inventory.ErrNotSupported) {
			continue
		}
		if list.Err != nil {
			return inventory.Unknown[[]inventory.MIGInstance](list.Err)
		}
		for _, gi := range list.Value {
			info := session.Ask(a, symGIInfo, gi.GetInfo)
			switch {
			case errors.Is(info.Err, inventory.ErrNoSuchGPU):
				// It went away since it was listed.
				continue
			case info.Err != nil:
				return inventory.Unknown[[]inventory.MIGInstance](info.Err)
			}
			out = append(out, inventory.MIGInstance{ID: int(info.Value.Id), ProfileID: int(info.Value.ProfileId), Placement: placement(info.Value.Placement)})
		}
	}
	return withCompute(a, d, out)
}

// withCompute adds the compute instances, which NVML knows as MIG devices.
func withCompute(a *session.Asker, d nvml.Device, found []inventory.MIGInstance) inventory.Fact[[]inventory.MIGInstance] {
	if len(found) == 0 {
		return inventory.Known(found)
	}
	count := session.Ask(a, symMIGCount, d.GetMaxMigDeviceCount)
	if count.Err != nil {
		return inventory.Unknown[[]inventory.MIGInstance](count.Err)
	}
	for index := range count.Value {
		device := session.Ask(a, symMIGByIndex, func() (nvml.Device, nvml.Return) { return d.GetMigDeviceHandleByIndex(index) })
		if errors.Is(device.Err, inventory.ErrNoSuchGPU) {
			continue
		}
		gi, c, err := compute(a, device)
		switch {
		case errors.Is(err, inventory.ErrNoSuchGPU):
			continue
		case err != nil:
			return inventory.Unknown[[]inventory.MIGInstance](err)
		}
		for i := range found {
			if found[i].ID == gi {
				found[i].Compute = append(found[i].Compute, c)
			}
		}
	}
	for i := range found {
		slices.SortFunc(found[i].Compute, func(x, y inventory.MIGCompute) int { return cmp.Compare(x.ID, y.ID) })
	}
	return inventory.Known(found)
}

// compute reads one MIG device; gi is the GPU instance that it is in.
func compute(a *session.Asker, handle inventory.Fact[nvml.Device]) (gi int, c inventory.MIGCompute, err error) {
	if handle.Err != nil {
		return 0, c, handle.Err
	}
	d := handle.Value
	instance, id, uuid := session.Ask(a, symGIID, d.GetGpuInstanceId), session.Ask(a, symCIID, d.GetComputeInstanceId), session.Ask(a, symUUID, d.GetUUID)
	if err := errors.Join(instance.Err, id.Err, uuid.Err); err != nil {
		return 0, c, err
	}
	size := session.Ask(a, symAttributes, d.GetAttributes)
	return instance.Value, inventory.MIGCompute{ID: id.Value, UUID: uuid.Value, Slices: int(size.Value.ComputeInstanceSliceCount)}, a.End
}

// textOf reads a C string.
func textOf(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

package nvml

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/names"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ends are what links end at, by board and number. A cable is not pulled while its link is up, and a
// node can have hundreds of links, so this is asked again only for a link that was down.
type ends map[port]inventory.LinkReading

type port struct {
	uuid   string
	number int
}

// links reads the board's NVLink ports; ErrNotSupported for a board without.
func (e ends) links(a *session.Asker, d nvml.Device, uuid string) inventory.Fact[[]inventory.LinkReading] {
	count := linkCount(a, d)
	known := count.Err == nil
	if !known {
		// NVML answers for every number of a link that the board has.
		count.Value = nvml.NVLINK_MAX_LINKS
	}
	var readings []inventory.LinkReading
	for number := range count.Value {
		active := session.Ask(a, symLinkState, func() (bool, nvml.Return) {
			state, ret := d.GetNvLinkState(number)
			return state == nvml.FEATURE_ENABLED, ret
		})
		if a.End != nil {
			return inventory.Unknown[[]inventory.LinkReading](a.End)
		}
		if !known && pastTheLast(active.Err) {
			break
		}
		readings = append(readings, e.link(a, d, port{uuid, number}, active))
	}
	if len(readings) == 0 {
		return inventory.Unknown[[]inventory.LinkReading](inventory.ErrNotSupported)
	}
	return inventory.Known(readings)
}

func pastTheLast(err error) bool {
	var code *session.CallError
	return errors.Is(err, inventory.ErrNotSupported) ||
		(errors.As(err, &code) && nvml.Return(code.Code) == nvml.ERROR_INVALID_ARGUMENT)
}

// linkCount is the number of links that the board has, up or down.
func linkCount(a *session.Asker, d nvml.Device) inventory.Fact[int] {
	return session.Ask(a, symFields, func() (int, nvml.Return) {
		fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}}
		if ret := d.GetFieldValues(fields); ret != nvml.SUCCESS {
			return 0, ret
		}
		// NVML's unions are in the machine's byte order.
		n := binary.NativeEndian.Uint32(fields[0].Value[:4])
		return int(min(n, nvml.NVLINK_MAX_LINKS)), nvml.Return(fields[0].NvmlReturn)
	})
}

func (e ends) link(a *session.Asker, d nvml.Device, at port, active inventory.Fact[bool]) inventory.LinkReading {
	if active.Err != nil || !active.Value {
		delete(e, at)
		return inventory.LinkReading{Active: active}
	}
	r, known := e[at]
	if !known {
		r = end(a, d, at.number, active)
		if at.uuid != "" && sure(r.Version.Err, r.Remote.Err, r.Peer.Err) {
			e[at] = r
		}
	}
	return r
}

// sure tells whether facts were read, or are such as the board does not have.
func sure(errs ...error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return err != nil && !errors.Is(err, inventory.ErrNotSupported) })
}

// end reads what an active link ends at.
func end(a *session.Asker, d nvml.Device, number int, active inventory.Fact[bool]) inventory.LinkReading {
	r := inventory.LinkReading{Active: active}
	r.Version = convert(session.Ask(a, symLinkVersion, func() (uint32, nvml.Return) { return d.GetNvLinkVersion(number) }), names.NVLinkGeneration)
	r.Remote = convert(session.Ask(a, symLinkRemoteType, func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return d.GetNvLinkRemoteDeviceType(number)
	}), names.Remote)
	if r.Remote.Err == nil && r.Remote.Value != inventory.RemoteGPU {
		r.Peer = inventory.Unknown[pci.Address](inventory.ErrNotSupported)
		return r
	}
	r.Peer = convert(session.Ask(a, symLinkRemotePCI, func() (nvml.PciInfo, nvml.Return) { return d.GetNvLinkRemotePciInfo(number) }), peerAddress)
	return r
}

// peerAddress is addressOf for the far end of a link, where NVML writes FFFFFFFF:FF:FF.0 for
// what has no address.
func peerAddress(info nvml.PciInfo) (pci.Address, error) {
	address, err := addressOf(info)
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "ffffffff:ff:ff.") {
		return pci.Address{}, fmt.Errorf("the far end has no PCI address: %w", inventory.ErrNotSupported)
	}
	return address, err
}

// peers asks which of the other boards board i reaches over NVLink. Boards without links are
// not asked.
func peers(ctx context.Context, s *session.Session, boards []inventory.Board, devices []nvml.Device, i int) inventory.Fact[[]pci.Address] {
	from := boards[i]
	if !usable(from) || from.Links.Err != nil {
		return inventory.Unknown[[]pci.Address](inventory.ErrNotSupported)
	}
	a := s.About(ctx, from.PCI.Value.String())
	var f inventory.Fact[[]pci.Address]
	for j, to := range boards {
		if j == i || !usable(to) {
			continue
		}
		status := session.Ask(a, symP2P, func() (nvml.GpuP2PStatus, nvml.Return) {
			return devices[i].GetP2PStatus(devices[j], nvml.P2P_CAPS_INDEX_NVLINK)
		})
		switch {
		case errors.Is(status.Err, inventory.ErrNotSupported):
			f.Err = errors.Join(f.Err, status.Err)
		case status.Err != nil:
			// Either end may be lost: that is for its own reading to say.
			return inventory.Fact[[]pci.Address]{Value: f.Value, Err: fmt.Errorf("P2P status with %s: %s", to.PCI.Value, status.Err.Error())}
		case status.Value == nvml.P2P_STATUS_OK:
			f.Value = append(f.Value, to.PCI.Value)
		}
	}
	return f
}

// usable tells whether a board's handle can be asked about its peers.
func usable(b inventory.Board) bool { return b.Err == nil && b.PCI.Err == nil && b.Unjudged == nil }

// fabric reads the GPU's place in an NVLink fabric with the newest structure that the driver
// knows.
func fabric(a *session.Asker, d nvml.Device) inventory.Fact[inventory.FabricReading] {
	if a.Session.Has(symFabricV) {
		for _, version := range []func() (inventory.FabricReading, nvml.Return, uint8){
			func() (inventory.FabricReading, nvml.Return, uint8) {
				info, ret := d.GetGpuFabricInfoV().V3()
				return fabricReading(info.Status, info.ClusterUuid, info.CliqueId, info.HealthMask), ret, info.State
			},
			func() (inventory.FabricReading, nvml.Return, uint8) {
				info, ret := d.GetGpuFabricInfoV().V2()
				return fabricReading(info.Status, info.ClusterUuid, info.CliqueId, info.HealthMask), ret, info.State
			},
		} {
			if f := fabricOf(a, symFabricV, version); !unknownVersion(f.Err) {
				return f
			}
		}
	}
	return fabricOf(a, symFabric, func() (inventory.FabricReading, nvml.Return, uint8) {
		info, ret := d.GetGpuFabricInfo()
		return fabricReading(info.Status, info.ClusterUuid, info.CliqueId, 0), ret, info.State
	})
}

func fabricOf(a *session.Asker, symbol string, call func() (inventory.FabricReading, nvml.Return, uint8)) inventory.Fact[inventory.FabricReading] {
	type answer struct {
		reading inventory.FabricReading
		state   uint8
	}
	return convert(session.Ask(a, symbol, func() (answer, nvml.Return) {
		reading, ret, state := call()
		return answer{reading, state}, ret
	}), func(got answer) (inventory.FabricReading, error) {
		state, err := names.FabricState(got.state)
		got.reading.State = state
		return got.reading, err
	})
}

func fabricReading(status uint32, cluster [16]uint8, clique, mask uint32) inventory.FabricReading {
	r := inventory.FabricReading{ClusterUUID: cluster, CliqueID: clique, HealthMask: mask}
	if ret := nvml.Return(status); ret != nvml.SUCCESS {
		r.Status = errors.New(ret.Error())
	}
	return r
}

// unknownVersion tells whether the driver does not know the version of a structure.
func unknownVersion(err error) bool {
	var code *session.CallError
	if !errors.As(err, &code) {
		return false
	}
	ret := nvml.Return(code.Code)
	return ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

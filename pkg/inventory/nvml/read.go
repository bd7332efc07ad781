package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/names"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// convert turns what was read into what we name it.
func convert[T, U any](f inventory.Fact[T], to func(T) (U, error)) inventory.Fact[U] {
	if f.Err != nil {
		return inventory.Unknown[U](f.Err)
	}
	value, err := to(f.Value)
	return inventory.Fact[U]{Value: value, Err: err}
}

// reader reads the node in one session.
type reader struct {
	session    *session.Session
	partitions *partitions
	selection  selection.Selection
	// judged is what GPUs were found to be in this session.
	judged map[pci.Address]selection.Verdict
	// ends are what active links were found to end at in this session.
	ends ends
}

// read reads everything.
func (r *reader) read(ctx context.Context, onBus []pci.Address) (inventory.Reading, error) {
	s := r.session
	library := s.AboutLibrary(ctx)
	count := session.Ask(library, symCount, s.API.DeviceGetCount)
	if count.Err != nil {
		return inventory.Reading{}, session.Passing(count.Err)
	}
	out := inventory.Reading{
		DriverVersion: session.Ask(library, symDriverVersion, s.API.SystemGetDriverVersion),
		CUDA:          convert(session.Ask(library, symCUDA, s.API.SystemGetCudaDriverVersion), cudaVersion),
		Refused:       map[pci.Address]error{},
	}
	devices := r.boards(ctx, count.Value, onBus, &out)
	for i := range out.Boards {
		out.Boards[i].Peers = peers(ctx, s, out.Boards, devices, i)
	}
	for _, address := range onBus {
		there := slices.ContainsFunc(out.Boards, func(b inventory.Board) bool { return b.PCI.Err == nil && b.PCI.Value == address })
		if !there && !slices.Contains(out.Excluded, address) {
			out.Refused[address] = refusal(ctx, s, out.Boards, address)
		}
	}
	return out, errors.Join(session.Passing(library.End), ctx.Err())
}

// cudaVersion takes NVML's 1000*major + 10*minor apart.
func cudaVersion(v int) (inventory.Version, error) {
	return inventory.Version{Major: v / 1000, Minor: v % 1000 / 10}, nil
}

// refusal is what NVML says of a GPU whose address no board has; nil if nothing.
func refusal(ctx context.Context, s *session.Session, boards []inventory.Board, address pci.Address) error {
	a := s.About(ctx, address.String())
	f := session.Ask(a, symHandleByPCI, func() (nvml.Device, nvml.Return) { return s.API.DeviceGetHandleByPciBusId(address.String()) })
	var code *session.CallError
	if errors.As(f.Err, &code) && nvml.Return(code.Code) == nvml.ERROR_NOT_FOUND {
		// It says no more than that the enumeration does not have it.
		return nil
	}
	if f.Err != nil {
		return f.Err
	}
	// NVML serves it, so it is one of the boards that would not say who they are.
	index := session.Ask(a, symIndex, f.Value.GetIndex)
	for _, b := range boards {
		if index.Err == nil && b.Index == index.Value {
			return b.PCI.Err
		}
	}
	return index.Err
}

// boards reads the GPUs that are served and gives their devices. Excluded ones are left alone but for
// what tells that they are, which is not asked again in this session. Where GPUs are chosen and
// the bus shows them, NVML is asked for them by address: to go through its enumeration is to open each.
func (r *reader) boards(ctx context.Context, count int, onBus []pci.Address, out *inventory.Reading) (devices []nvml.Device) {
	s := r.session
	add := func(a *session.Asker, b inventory.Board, handle inventory.Fact[nvml.Device]) {
		b, excluded := r.board(a, b, handle, out.DriverVersion.Value)
		if excluded {
			out.Excluded = append(out.Excluded, b.PCI.Value)
			return
		}
		out.Boards, devices = append(out.Boards, b), append(devices, handle.Value)
	}
	byAddress := !r.selection.Everything() && len(onBus) > 0
	for index := range count {
		if byAddress {
			break
		}
		a := s.About(ctx, fmt.Sprintf("the GPU at index %d", index))
		handle := session.Ask(a, symHandle, func() (nvml.Device, nvml.Return) { return s.API.DeviceGetHandleByIndex(index) })
		b := inventory.Board{Index: index, Err: handle.Err, PCI: inventory.Unknown[pci.Address](handle.Err)}
		if handle.Err == nil {
			b.PCI = convert(session.Ask(a, symPCI, handle.Value.GetPciInfo), addressOf)
		}
		if b.PCI.Err == nil {
			a.Rename(b.PCI.Value.String())
		}
		add(a, b, handle)
	}
	for _, address := range onBus {
		switch {
		case !byAddress:
		case r.judged[address] == selection.Excluded || r.selection.Verdict(selection.Identity{PCI: address}) == selection.Excluded:
			out.Excluded = append(out.Excluded, address)
		default:
			a := s.About(ctx, address.String())
			handle := session.Ask(a, symHandleByPCI, func() (nvml.Device, nvml.Return) { return s.API.DeviceGetHandleByPciBusId(address.String()) })
			b := inventory.Board{Err: handle.Err, PCI: inventory.Known(address)}
			if handle.Err == nil {
				b.Index = session.Ask(a, symIndex, handle.Value.GetIndex).Value
			}
			if !session.HasCode(handle.Err, nvml.ERROR_NOT_FOUND) {
				add(a, b, handle)
			}
		}
	}
	return devices
}

// board reads a GPU further, if there is a handle, unless it is excluded.
func (r *reader) board(a *session.Asker, b inventory.Board, handle inventory.Fact[nvml.Device], driver string) (_ inventory.Board, excluded bool) {
	if handle.Err != nil {
		return b, false
	}
	d := handle.Value
	b.UUID = session.Ask(a, symUUID, d.GetUUID)
	b.ProductName = session.Ask(a, symName, d.GetName)
	switch r.judge(b) {
	case selection.Excluded:
		return b, true
	case selection.Undecided:
		b.Unjudged, b.Err = cmp.Or(errors.Join(b.PCI.Err, b.UUID.Err, b.ProductName.Err), errNameless), a.End
		return b, false
	}
	identity(a, d, &b)
	state(a, d, &b)
	b.Links = r.ends.links(a, d, b.UUID.Value)
	b.Fabric = fabric(a, d)
	r.partitions.read(a, d, driver, &b)
	b.Err = a.End
	return b, false
}

// errNameless is why a GPU is not judged that answers, and says nothing.
var errNameless = errors.New("the driver gives it an empty UUID or product name")

// judge says whether a GPU is served. In one session it stays what it was found to be: one call that
// fails takes no GPU out of the pool.
func (r *reader) judge(b inventory.Board) selection.Verdict {
	verdict := r.selection.Verdict(selection.Identity{PCI: b.PCI.Value, UUID: b.UUID.Value, Product: b.ProductName.Value})
	switch {
	case b.PCI.Err != nil:
	case verdict == selection.Undecided:
		return r.judged[b.PCI.Value]
	default:
		r.judged[b.PCI.Value] = verdict
	}
	return verdict
}

func identity(a *session.Asker, d nvml.Device, b *inventory.Board) {
	b.Minor = session.Ask(a, symMinor, d.GetMinorNumber)
	b.Serial = session.Ask(a, symSerial, d.GetSerial)
	b.Brand = convert(session.Ask(a, symBrand, d.GetBrand), names.Brand)
	b.Architecture = convert(session.Ask(a, symArchitecture, d.GetArchitecture), names.Architecture)
	b.AddressingMode = convert(session.Ask(a, symAddressingMode, d.GetAddressingMode), names.AddressingMode)
	b.ComputeCapability = session.Ask(a, symCapability, func() (inventory.Version, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return inventory.Version{Major: major, Minor: minor}, ret
	})
}

func state(a *session.Asker, d nvml.Device, b *inventory.Board) {
	b.MemoryBytes = session.Ask(a, symMemory, func() (uint64, nvml.Return) {
		memory, ret := d.GetMemoryInfo()
		return memory.Total, ret
	})
	b.ECCEnabled = session.Ask(a, symECC, func() (bool, nvml.Return) {
		current, _, ret := d.GetEccMode()
		return current == nvml.FEATURE_ENABLED, ret
	})
	b.VGPUHost = session.Ask(a, symVirtualization, func() (bool, nvml.Return) {
		mode, ret := d.GetVirtualizationMode()
		// A vGPU inside a virtual machine is a GPU like any other; its host's board is not.
		return mode == nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU || mode == nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA, ret
	})
	b.MIG = migMode(a, d)
}

func migMode(a *session.Asker, d nvml.Device) inventory.Fact[inventory.MIG] {
	return session.Ask(a, symMIGMode, func() (inventory.MIG, nvml.Return) {
		current, pending, ret := d.GetMigMode()
		return inventory.MIG{
			Capable: true, Enabled: current == nvml.DEVICE_MIG_ENABLE, PendingEnabled: pending == nvml.DEVICE_MIG_ENABLE,
		}, ret
	})
}

// addressOf reads the address of nvmlPciInfo_t, a C string.
func addressOf(info nvml.PciInfo) (pci.Address, error) {
	text := make([]byte, 0, len(info.BusId))
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return pci.Parse(string(text))
}

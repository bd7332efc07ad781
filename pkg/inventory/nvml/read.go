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
	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// asker asks NVML about one thing (a GPU, or the library) in one session. It lives no longer
// than the reading whose context it has.
type asker struct {
	ctx      context.Context
	watchdog *watchdog.Watchdog
	session  *session
	about    string
	// end is why asking on is of no use: the GPU is lost, a call hangs, the context ended.
	end error
}

// ask makes one call, unless asking is of no use or the driver does not have it.
func ask[T any](a *asker, symbol string, call func() (T, nvml.Return)) inventory.Fact[T] {
	if a.end != nil {
		return inventory.Unknown[T](a.end)
	}
	if !a.session.symbols[symbol] {
		return inventory.Unknown[T](fmt.Errorf("%s is not in this driver's library: %w", symbol, inventory.ErrNotSupported))
	}
	fact, err := watchdog.Watch(a.ctx, a.watchdog, a.about, symbol, func() inventory.Fact[T] {
		value, ret := call()
		return inventory.Fact[T]{Value: value, Err: Failure(symbol, ret)}
	})
	if err != nil {
		a.end = err
		return inventory.Unknown[T](err)
	}
	if errors.Is(fact.Err, inventory.ErrLost) {
		a.end = fact.Err
	}
	return fact
}

// convert turns what was read into what we name it.
func convert[T, U any](f inventory.Fact[T], to func(T) (U, error)) inventory.Fact[U] {
	if f.Err != nil {
		return inventory.Unknown[U](f.Err)
	}
	value, err := to(f.Value)
	return inventory.Fact[U]{Value: value, Err: err}
}

// read reads everything in one session.
func read(ctx context.Context, w *watchdog.Watchdog, s *session, onBus []pci.Address) (inventory.Reading, error) {
	library := &asker{ctx: ctx, watchdog: w, session: s, about: watchdog.Library}
	count := ask(library, symCount, s.api.DeviceGetCount)
	if count.Err != nil {
		return inventory.Reading{}, passing(count.Err)
	}
	r := inventory.Reading{
		DriverVersion: ask(library, symDriverVersion, s.api.SystemGetDriverVersion),
		CUDA:          convert(ask(library, symCUDA, s.api.SystemGetCudaDriverVersion), cudaVersion),
		Refused:       map[pci.Address]error{},
	}
	devices := boards(ctx, w, s, count.Value, onBus, &r)
	for i := range r.Boards {
		r.Boards[i].Peers = peers(ctx, w, s, r.Boards, devices, i)
	}
	for _, address := range onBus {
		there := slices.ContainsFunc(r.Boards, func(b inventory.Board) bool { return b.PCI.Err == nil && b.PCI.Value == address })
		if !there && !slices.Contains(r.Excluded, address) {
			r.Refused[address] = refusal(ctx, w, s, r.Boards, address)
		}
	}
	return r, errors.Join(passing(library.end), ctx.Err())
}

// cudaVersion takes NVML's 1000*major + 10*minor apart.
func cudaVersion(v int) (inventory.Version, error) {
	return inventory.Version{Major: v / 1000, Minor: v % 1000 / 10}, nil
}

// refusal is what NVML says of a GPU whose address no board has; nil if nothing.
func refusal(ctx context.Context, w *watchdog.Watchdog, s *session, boards []inventory.Board, address pci.Address) error {
	a := &asker{ctx: ctx, watchdog: w, session: s, about: address.String()}
	f := ask(a, symHandleByPCI, func() (nvml.Device, nvml.Return) { return s.api.DeviceGetHandleByPciBusId(address.String()) })
	var code *CallError
	if errors.As(f.Err, &code) && nvml.Return(code.Code) == nvml.ERROR_NOT_FOUND {
		// It says no more than that the enumeration does not have it.
		return nil
	}
	if f.Err != nil {
		return f.Err
	}
	// NVML serves it, so it is one of the boards that would not say who they are.
	index := ask(a, symIndex, f.Value.GetIndex)
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
func boards(ctx context.Context, w *watchdog.Watchdog, s *session, count int, onBus []pci.Address, r *inventory.Reading) (devices []nvml.Device) {
	add := func(a *asker, b inventory.Board, handle inventory.Fact[nvml.Device]) {
		b, excluded := board(a, b, handle, r.DriverVersion.Value)
		if excluded {
			r.Excluded = append(r.Excluded, b.PCI.Value)
			return
		}
		r.Boards, devices = append(r.Boards, b), append(devices, handle.Value)
	}
	byAddress := !s.selection.Everything() && len(onBus) > 0
	for index := range count {
		if byAddress {
			break
		}
		a := &asker{ctx: ctx, watchdog: w, session: s, about: fmt.Sprintf("the GPU at index %d", index)}
		handle := ask(a, symHandle, func() (nvml.Device, nvml.Return) { return s.api.DeviceGetHandleByIndex(index) })
		b := inventory.Board{Index: index, Err: handle.Err, PCI: inventory.Unknown[pci.Address](handle.Err)}
		if handle.Err == nil {
			b.PCI = convert(ask(a, symPCI, handle.Value.GetPciInfo), addressOf)
		}
		if b.PCI.Err == nil {
			a.about = b.PCI.Value.String()
		}
		add(a, b, handle)
	}
	for _, address := range onBus {
		switch {
		case !byAddress:
		case s.judged[address] == selection.Excluded || s.selection.Verdict(selection.Identity{PCI: address}) == selection.Excluded:
			r.Excluded = append(r.Excluded, address)
		default:
			a := &asker{ctx: ctx, watchdog: w, session: s, about: address.String()}
			handle := ask(a, symHandleByPCI, func() (nvml.Device, nvml.Return) { return s.api.DeviceGetHandleByPciBusId(address.String()) })
			b := inventory.Board{Err: handle.Err, PCI: inventory.Known(address)}
			if handle.Err == nil {
				b.Index = ask(a, symIndex, handle.Value.GetIndex).Value
			}
			if !hasCode(handle.Err, nvml.ERROR_NOT_FOUND) {
				add(a, b, handle)
			}
		}
	}
	return devices
}

// board reads a GPU further, if there is a handle, unless it is excluded.
func board(a *asker, b inventory.Board, handle inventory.Fact[nvml.Device], driver string) (_ inventory.Board, excluded bool) {
	if handle.Err != nil {
		return b, false
	}
	s, d := a.session, handle.Value
	b.UUID = ask(a, symUUID, d.GetUUID)
	b.ProductName = ask(a, symName, d.GetName)
	switch s.judge(b) {
	case selection.Excluded:
		return b, true
	case selection.Undecided:
		b.Unjudged, b.Err = cmp.Or(errors.Join(b.PCI.Err, b.UUID.Err, b.ProductName.Err), errNameless), a.end
		return b, false
	}
	identity(a, d, &b)
	state(a, d, &b)
	b.Links = links(a, d)
	b.Fabric = fabric(a, d)
	s.partitions.read(a, d, driver, &b)
	b.Err = a.end
	return b, false
}

// errNameless is why a GPU is not judged that answers, and says nothing.
var errNameless = errors.New("the driver gives it an empty UUID or product name")

// judge says whether a GPU is served. In one session it stays what it was found to be: one call that
// fails takes no GPU out of the pool.
func (s *session) judge(b inventory.Board) selection.Verdict {
	verdict := s.selection.Verdict(selection.Identity{PCI: b.PCI.Value, UUID: b.UUID.Value, Product: b.ProductName.Value})
	switch {
	case b.PCI.Err != nil:
	case verdict == selection.Undecided:
		return s.judged[b.PCI.Value]
	default:
		s.judged[b.PCI.Value] = verdict
	}
	return verdict
}

func identity(a *asker, d nvml.Device, b *inventory.Board) {
	b.Minor = ask(a, symMinor, d.GetMinorNumber)
	b.Serial = ask(a, symSerial, d.GetSerial)
	b.Brand = convert(ask(a, symBrand, d.GetBrand), names.Brand)
	b.Architecture = convert(ask(a, symArchitecture, d.GetArchitecture), names.Architecture)
	b.AddressingMode = convert(ask(a, symAddressingMode, d.GetAddressingMode), names.AddressingMode)
	b.ComputeCapability = ask(a, symCapability, func() (inventory.Version, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return inventory.Version{Major: major, Minor: minor}, ret
	})
}

func state(a *asker, d nvml.Device, b *inventory.Board) {
	b.MemoryBytes = ask(a, symMemory, func() (uint64, nvml.Return) {
		memory, ret := d.GetMemoryInfo()
		return memory.Total, ret
	})
	b.ECCEnabled = ask(a, symECC, func() (bool, nvml.Return) {
		current, _, ret := d.GetEccMode()
		return current == nvml.FEATURE_ENABLED, ret
	})
	b.VGPUHost = ask(a, symVirtualization, func() (bool, nvml.Return) {
		mode, ret := d.GetVirtualizationMode()
		// A vGPU inside a virtual machine is a GPU like any other; its host's board is not.
		return mode == nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU || mode == nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA, ret
	})
	b.MIG = migMode(a, d)
}

func migMode(a *asker, d nvml.Device) inventory.Fact[inventory.MIG] {
	return ask(a, symMIGMode, func() (inventory.MIG, nvml.Return) {
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

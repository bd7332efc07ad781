package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/pci"
)

// assemble judges a reading. Every board ends up in exactly one of GPUs, Unusable or, where
// not even its address is known, Problems.
func assemble(r Reading, functions []Function, node []Problem) Snapshot {
	a := assembly{
		functions: make(map[pci.Address]Function, len(functions)),
		seen:      make(map[pci.Address]bool, len(r.Boards)),
		uuids:     make(map[string]pci.Address, len(r.Boards)),
	}
	for _, f := range functions {
		a.functions[f.PCI] = f
	}
	a.Problems = node
	a.Driver = Driver{Present: true, Version: take(&a, pci.Address{}, "driverVersion", r.DriverVersion)}
	cuda := take(&a, pci.Address{}, "cudaDriverVersion", r.CUDA)
	a.Driver.CUDAMajor, a.Driver.CUDAMinor = cuda.Major, cuda.Minor
	for _, b := range r.Boards {
		a.board(b)
	}
	a.rest(functions, r.Refused)
	a.keepUsablePeers()
	a.sort()
	return a.Snapshot
}

// assembly is a snapshot in the making.
type assembly struct {
	Snapshot
	functions map[pci.Address]Function
	// seen are the addresses that a board of the enumeration accounts for.
	seen  map[pci.Address]bool
	uuids map[string]pci.Address
}

func (a *assembly) board(b Board) {
	if b.PCI.Err != nil || (b.Err != nil && b.PCI.Value == (pci.Address{})) {
		// rest gives the reason by address where the bus shows the GPU.
		err := cmp.Or(b.Err, b.PCI.Err)
		a.problem(pci.Address{}, fmt.Sprintf("GPU at NVML index %d", b.Index), err)
		return
	}
	at := b.PCI.Value
	if a.seen[at] {
		a.problem(at, "pciBusID", fmt.Errorf("NVML names two GPUs at this address; the one at index %d is left out", b.Index))
		return
	}
	a.seen[at] = true
	if reason := a.unusable(b); reason != "" {
		a.Unusable = append(a.Unusable, Unusable{PCI: at, Reason: reason, Cause: causeOf(b.Err)})
		return
	}
	a.uuids[b.UUID.Value] = at
	a.GPUs = append(a.GPUs, a.gpu(b))
}

// unusable says why a board with an address cannot be handed out; empty when it can.
func (a *assembly) unusable(b Board) string {
	if b.Err != nil {
		return reasonOf(b.Err)
	}
	if b.Unjudged != nil {
		return fmt.Sprintf("it cannot be told whether it is excluded: %v", b.Unjudged)
	}
	if f, ok := a.functions[b.PCI.Value]; ok && f.Physical != nil {
		return outOfReach(f)
	}
	switch {
	case b.VGPUHost.Err == nil && b.VGPUHost.Value:
		return "lent to virtual machines as vGPUs: not handed out"
	// Only a board that does not have the mode can do without an answer: handed out whole, one
	// that is shared with virtual machines or cut into partitions would be somebody else's too.
	case unlessNotSupported(b.VGPUHost.Err) != nil:
		return fmt.Sprintf("its virtualization mode cannot be read: %v", b.VGPUHost.Err)
	case unlessNotSupported(b.MIG.Err) != nil:
		return fmt.Sprintf("its MIG mode cannot be read: %v", b.MIG.Err)
	case b.UUID.Err != nil:
		return fmt.Sprintf("NVML gives no UUID: %v", b.UUID.Err)
	case b.UUID.Value == "":
		return "NVML gives an empty UUID"
	case b.Minor.Err != nil:
		return fmt.Sprintf("NVML gives no device minor number: %v", b.Minor.Err)
	}
	if twin, ok := a.uuids[b.UUID.Value]; ok {
		return fmt.Sprintf("has the UUID %s of the GPU at %s", b.UUID.Value, twin)
	}
	return ""
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrLost):
		return fmt.Sprintf("lost: %v", err)
	case errors.Is(err, ErrHung):
		return fmt.Sprintf("hangs: %v", err)
	}
	return fmt.Sprintf("NVML refuses it: %v", err)
}

func causeOf(err error) Cause {
	switch {
	case err == nil:
		return CauseWithheld
	case errors.Is(err, ErrLost):
		return CauseLost
	case errors.Is(err, ErrHung):
		return CauseHung
	}
	return CauseRefused
}

// gpu makes the value of a board with a working handle.
func (a *assembly) gpu(b Board) GPU {
	at := b.PCI.Value
	capability := take(a, at, "cudaComputeCapability", b.ComputeCapability)
	g := GPU{
		PCI: at, UUID: b.UUID.Value, Minor: b.Minor.Value, Index: b.Index,
		ProductName:    take(a, at, "productName", b.ProductName),
		Brand:          take(a, at, "brand", b.Brand),
		Architecture:   take(a, at, "architecture", b.Architecture),
		Serial:         take(a, at, "serial", b.Serial),
		AddressingMode: take(a, at, "addressingMode", b.AddressingMode),
		ComputeMajor:   capability.Major,
		ComputeMinor:   capability.Minor,
		MemoryBytes:    take(a, at, "memory", b.MemoryBytes),
		ECCEnabled:     pointer(a, at, "eccEnabled", b.ECCEnabled),
		MIG:            a.mig(b),
		NVLink:         a.nvlink(b),
		Fabric:         a.fabric(at, b.Fabric),
	}
	if f, ok := a.functions[at]; ok {
		g.PCIDevice = f.Device
		g.NUMANode = pointer(a, at, "numaNode", f.NUMANode)
		g.PCIeRoot = take(a, at, "pcieRoot", f.PCIeRoot)
	} else {
		a.problem(at, "pciBus", errors.New("the PCI bus does not show this GPU: neither NUMA node nor PCIe root are known"))
	}
	return g
}

func (a *assembly) nvlink(b Board) NVLink {
	at := b.PCI.Value
	readings := take(a, at, "nvlinkLinks", b.Links)
	n := NVLink{PeersKnown: b.Peers.Err == nil}
	for i, r := range readings {
		r.Version.Value = plausible(r.Version.Value, b.Architecture.Value)
		l, version, err := link(r)
		if err != nil {
			a.problem(at, fmt.Sprintf("nvlink %d", i), err)
		}
		n.Links = append(n.Links, l)
		n.Version = max(n.Version, version)
	}
	// Peers that were answered count even when another one's answer is missing.
	take(a, at, "nvlinkPeers", b.Peers)
	n.Peers = slices.Clone(b.Peers.Value)
	slices.SortFunc(n.Peers, pci.Address.Compare)
	n.Peers = slices.Compact(n.Peers)
	return n
}

// link judges one port and returns it with its generation and what could not be read of it.
func link(r LinkReading) (Link, int, error) {
	if r.Active.Err != nil || !r.Active.Value {
		return Link{}, 0, unlessNotSupported(r.Active.Err)
	}
	l := Link{Active: true, BandwidthMBps: bandwidthMBps(r.Version.Value)}
	if r.Remote.Err == nil {
		l.Remote = r.Remote.Value
	}
	if l.Remote == RemoteUnknown && r.Peer.Err == nil && r.Remote.Err != nil {
		// Drivers without the call for the remote type gave an address for GPUs only.
		l.Remote = RemoteGPU
	}
	if l.Remote == RemoteGPU && r.Peer.Err == nil {
		l.Peer = r.Peer.Value
	}
	return l, r.Version.Value, errors.Join(unlessNotSupported(r.Remote.Err),
		unlessNotSupported(r.Peer.Err), unlessNotSupported(r.Version.Err))
}

// plausible corrects an NVLink generation: some drivers give 5.0 for Hopper, whose links are 4.0.
func plausible(generation int, architecture string) int {
	if architecture == "Hopper" {
		return min(generation, 4)
	}
	return generation
}

// bandwidthMBps is one link's bandwidth in one direction, from NVIDIA's architecture papers:
// P100 160 GB/s over 4 links, V100 300 over 6, A100 600 over 12, H100 900 over 18 and
// Blackwell 1800 over 18, each for both directions together. 0 for other generations.
func bandwidthMBps(generation int) int {
	return map[int]int{1: 20_000, 2: 25_000, 3: 25_000, 4: 25_000, 5: 50_000}[generation]
}

func (a *assembly) fabric(at pci.Address, f Fact[FabricReading]) Fabric {
	switch {
	case f.Err == nil:
		return judgeFabric(f.Value)
	case errors.Is(f.Err, ErrNotSupported):
		return Fabric{Healthy: true}
	}
	a.problem(at, "fabric", f.Err)
	return Fabric{State: FabricUnknown, Reason: f.Err.Error()}
}

// rest accounts for the GPUs of the bus that no board names.
func (a *assembly) rest(functions []Function, refused map[pci.Address]error) {
	for _, f := range functions {
		if a.seen[f.PCI] {
			continue
		}
		a.seen[f.PCI] = true
		reason, cause := outOfReach(f), CauseWithheld
		switch err := refused[f.PCI]; {
		case reason != "":
		case err != nil:
			reason, cause = reasonOf(err), causeOf(err)
		default:
			reason, cause = "the driver has not initialised it yet", CauseRefused
		}
		a.Unusable = append(a.Unusable, Unusable{PCI: f.PCI, Reason: reason, Cause: cause})
	}
}

// keepUsablePeers drops peers that are not GPUs of the snapshot.
func (a *assembly) keepUsablePeers() {
	usable := make(map[pci.Address]bool, len(a.GPUs))
	for _, g := range a.GPUs {
		usable[g.PCI] = true
	}
	for i := range a.GPUs {
		g := &a.GPUs[i]
		g.NVLink.Peers = slices.DeleteFunc(g.NVLink.Peers, func(p pci.Address) bool { return !usable[p] || p == g.PCI })
		if len(g.NVLink.Peers) == 0 {
			// Equal hardware gives equal snapshots: never an empty slice beside nil.
			g.NVLink.Peers = nil
		}
	}
}

func (a *assembly) problem(at pci.Address, fact string, err error) {
	a.Problems = append(a.Problems, Problem{PCI: at, Fact: fact, Err: err})
}

// take returns the fact's value. Without one it returns the zero value, and notes a problem
// unless the board simply does not have that fact.
func take[T any](a *assembly, at pci.Address, name string, f Fact[T]) T {
	if f.Err == nil {
		return f.Value
	}
	if err := unlessNotSupported(f.Err); err != nil {
		a.problem(at, name, err)
	}
	var zero T
	return zero
}

// pointer is take for facts whose zero value means something.
func pointer[T any](a *assembly, at pci.Address, name string, f Fact[T]) *T {
	v := take(a, at, name, f)
	if f.Err != nil {
		return nil
	}
	return &v
}

func unlessNotSupported(err error) error {
	if errors.Is(err, ErrNotSupported) {
		return nil
	}
	return err
}

// sort brings a snapshot into its canonical order.
func (s *Snapshot) sort() {
	slices.SortFunc(s.GPUs, func(a, b GPU) int { return a.PCI.Compare(b.PCI) })
	slices.SortFunc(s.Unusable, func(a, b Unusable) int { return a.PCI.Compare(b.PCI) })
	slices.SortStableFunc(s.Problems, func(a, b Problem) int {
		return cmp.Or(a.PCI.Compare(b.PCI), cmp.Compare(a.Fact, b.Fact))
	})
}

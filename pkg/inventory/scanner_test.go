package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// edges is a node made by hand: what the library and the bus answer.
type edges struct {
	reading   inventory.Reading
	readErr   error
	functions []inventory.Function
	busErr    error
	module    string
	moduleErr error
	// asked is what the scanner handed to the library.
	asked []pci.Address
}

func (e *edges) Read(_ context.Context, onBus []pci.Address) (inventory.Reading, error) {
	e.asked = onBus
	return e.reading, e.readErr
}

func (e *edges) GPUs(context.Context) ([]inventory.Function, error) { return e.functions, e.busErr }

func (e *edges) DriverModule(context.Context) (string, error) { return e.module, e.moduleErr }

func (e *edges) scan(t testing.TB) inventory.Snapshot {
	t.Helper()
	s, err := inventory.NewScanner(e, e).Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func bus(n int) pci.Address { return pci.Address{Bus: uint8(0x10 + n)} }

// board is a healthy board with an answer to everything.
func board(n int) inventory.Board {
	return inventory.Board{
		Index: n, PCI: inventory.Known(bus(n)), UUID: inventory.Known(fmt.Sprintf("GPU-%d", n)), Minor: inventory.Known(7 - n),
		ProductName: inventory.Known("NVIDIA H100 80GB HBM3"), Brand: inventory.Known("Nvidia"), Architecture: inventory.Known("Hopper"),
		Serial: inventory.Known(fmt.Sprintf("16500%d", n)), AddressingMode: inventory.Known("None"),
		ComputeCapability: inventory.Known(inventory.Version{Major: 9}), MemoryBytes: inventory.Known(uint64(80 << 30)),
		ECCEnabled: inventory.Known(true), VGPUHost: inventory.Known(false), MIG: inventory.Known(inventory.MIG{Capable: true}),
		Links:  inventory.Known([]inventory.LinkReading{activeLink(inventory.RemoteSwitch, 4)}),
		Peers:  inventory.Known([]pci.Address{}),
		Fabric: inventory.Known(inventory.FabricReading{State: inventory.FabricCompleted, HealthMask: 0x1aa}),
	}
}

func activeLink(remote inventory.Remote, generation int) inventory.LinkReading {
	return inventory.LinkReading{
		Active: inventory.Known(true), Remote: inventory.Known(remote),
		Peer: inventory.Unknown[pci.Address](inventory.ErrNotSupported), Version: inventory.Known(generation),
	}
}

func function(n int) inventory.Function {
	return inventory.Function{PCI: bus(n), Driver: "nvidia", NUMANode: inventory.Known(n / 4), PCIeRoot: inventory.Known("pci0000:10")}
}

// node makes a healthy node of n GPUs, each the peer of all others.
func node(n int) *edges {
	e := &edges{module: "580.95.05", reading: inventory.Reading{
		DriverVersion: inventory.Known("580.95.05"), CUDA: inventory.Known(inventory.Version{Major: 13}),
	}}
	for i := range n {
		b := board(i)
		for j := range n {
			if j != i {
				b.Peers.Value = append(b.Peers.Value, bus(j))
			}
		}
		e.reading.Boards = append(e.reading.Boards, b)
		e.functions = append(e.functions, function(i))
	}
	return e
}

func addressesOf(s inventory.Snapshot) []pci.Address {
	var at []pci.Address
	for _, g := range s.GPUs {
		at = append(at, g.PCI)
	}
	return at
}

func TestScanOfAHealthyNode(t *testing.T) {
	e := node(2)
	slices.Reverse(e.reading.Boards)
	got := e.scan(t)
	numa, ecc := 0, true
	gpu := func(n, peer int) inventory.GPU {
		return inventory.GPU{
			PCI: bus(n), UUID: fmt.Sprintf("GPU-%d", n), Minor: 7 - n, Index: n,
			ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", Serial: fmt.Sprintf("16500%d", n),
			AddressingMode: "None", ComputeMajor: 9, MemoryBytes: 80 << 30, ECCEnabled: &ecc, MIG: inventory.MIG{Capable: true},
			NVLink: inventory.NVLink{
				Version: 4, Links: []inventory.Link{{Active: true, Remote: inventory.RemoteSwitch, BandwidthMBps: 25000}},
				Peers: []pci.Address{bus(peer)}, PeersKnown: true,
			},
			Fabric:   inventory.Fabric{State: inventory.FabricCompleted, Healthy: true},
			NUMANode: &numa, PCIeRoot: "pci0000:10",
		}
	}
	want := inventory.Snapshot{
		Driver: inventory.Driver{Present: true, Version: "580.95.05", CUDAMajor: 13},
		GPUs:   []inventory.GPU{gpu(0, 1), gpu(1, 0)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]pci.Address{bus(0), bus(1)}, e.asked); diff != "" {
		t.Errorf("asked of the library (-want +got):\n%s", diff)
	}
}

// One bad GPU: whatever is wrong with it, the other three stay as they are and it is
// accounted for with a reason.
func TestOneBadGPULeavesTheOthersAlone(t *testing.T) {
	lost := fmt.Errorf("nvmlDeviceGetUUID: %w", inventory.ErrLost)
	hung := fmt.Errorf("nvmlDeviceGetSerial: %w", inventory.ErrHung)
	broken := errors.New("nvmlDeviceGetUUID: Unknown Error")
	parent := bus(0)
	for name, c := range map[string]struct {
		harm   func(b *inventory.Board, f *inventory.Function, r *inventory.Reading)
		reason string
	}{
		"lost while it was read": {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) { b.Err = lost }, "lost: "},
		"a call hangs":           {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) { b.Err = hung }, "hangs: "},
		"no UUID": {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) {
			b.UUID = inventory.Unknown[string](broken)
		}, "no UUID: nvml"},
		"empty UUID":          {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) { b.UUID.Value = "" }, "empty UUID"},
		"UUID of a neighbour": {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) { b.UUID.Value = "GPU-0" }, "of the GPU at 0000:10:00.0"},
		"no minor": {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) {
			b.Minor = inventory.Unknown[int](inventory.ErrNotSupported)
		}, "no device minor"},
		"vGPU host": {func(b *inventory.Board, _ *inventory.Function, _ *inventory.Reading) { b.VGPUHost.Value = true }, "vGPUs"},
		"virtual function": {func(_ *inventory.Board, f *inventory.Function, _ *inventory.Reading) {
			f.Physical = &parent
		}, "virtual function of 0000:10:00.0"},
		"no handle, lost": {func(b *inventory.Board, _ *inventory.Function, r *inventory.Reading) {
			*b = inventory.Board{Index: b.Index, Err: lost, PCI: inventory.Unknown[pci.Address](lost)}
			r.Refused = map[pci.Address]error{bus(1): lost}
		}, "lost: "},
		"no handle, refused": {func(b *inventory.Board, _ *inventory.Function, r *inventory.Reading) {
			*b = inventory.Board{Index: b.Index, PCI: inventory.Unknown[pci.Address](broken)}
			r.Refused = map[pci.Address]error{bus(1): broken}
		}, "NVML refuses it: "},
	} {
		t.Run(name, func(t *testing.T) {
			e, healthy := node(4), node(4).scan(t)
			c.harm(&e.reading.Boards[1], &e.functions[1], &e.reading)
			got := e.scan(t)
			if diff := cmp.Diff([]pci.Address{bus(0), bus(2), bus(3)}, addressesOf(got)); diff != "" {
				t.Fatalf("usable GPUs (-want +got):\n%s", diff)
			}
			if len(got.Unusable) != 1 || got.Unusable[0].PCI != bus(1) || !strings.Contains(got.Unusable[0].Reason, c.reason) {
				t.Errorf("unusable is %+v, want %v with %q", got.Unusable, bus(1), c.reason)
			}
			for _, g := range got.GPUs {
				if slices.Contains(g.NVLink.Peers, bus(1)) {
					t.Errorf("%v still has the unusable GPU as a peer", g.PCI)
				}
			}
			ignoring := cmpopts.IgnoreFields(inventory.NVLink{}, "Peers")
			if diff := cmp.Diff(healthy.GPUs[2:], got.GPUs[1:], ignoring); diff != "" {
				t.Errorf("the neighbours changed (-healthy +got):\n%s", diff)
			}
		})
	}
}

func TestAHandleWithoutAddressIsReported(t *testing.T) {
	e := node(2)
	broken := errors.New("nvmlDeviceGetHandleByIndex: Unknown Error")
	e.reading.Boards[1] = inventory.Board{Index: 1, Err: broken, PCI: inventory.Unknown[pci.Address](broken)}
	e.functions = e.functions[:1]
	got := e.scan(t)
	if len(got.GPUs) != 1 || len(got.Problems) != 1 || got.Problems[0].Fact != "GPU at NVML index 1" || !errors.Is(got.Problems[0].Err, broken) {
		t.Errorf("got %d GPUs and the problems %+v", len(got.GPUs), got.Problems)
	}
}

func TestTwoBoardsAtOneAddress(t *testing.T) {
	e := node(2)
	e.reading.Boards[1].PCI = inventory.Known(bus(0))
	got := e.scan(t)
	if diff := cmp.Diff([]pci.Address{bus(0)}, addressesOf(got)); diff != "" {
		t.Errorf("usable GPUs (-want +got):\n%s", diff)
	}
	if len(got.Problems) != 1 || got.Problems[0].Fact != "pciBusID" {
		t.Errorf("problems are %+v", got.Problems)
	}
}

// A board whose sharing cannot be read may be in use by others; one that has no such mode is free.
func TestAModeThatCannotBeReadKeepsTheGPUBack(t *testing.T) {
	broken := errors.New("nvmlCall: Unknown Error (code 999)")
	for name, c := range map[string]struct {
		harm func(b *inventory.Board)
		want []inventory.Unusable
	}{
		"virtualization mode": {
			func(b *inventory.Board) { b.VGPUHost = inventory.Unknown[bool](broken) },
			[]inventory.Unusable{{PCI: bus(0), Reason: "its virtualization mode cannot be read: nvmlCall: Unknown Error (code 999)"}},
		},
		"MIG mode": {
			func(b *inventory.Board) { b.MIG = inventory.Unknown[inventory.MIG](broken) },
			[]inventory.Unusable{{PCI: bus(0), Reason: "its MIG mode cannot be read: nvmlCall: Unknown Error (code 999)"}},
		},
		"neither is supported": {
			func(b *inventory.Board) {
				b.VGPUHost = inventory.Unknown[bool](fmt.Errorf("nvmlCall: %w", inventory.ErrNotSupported))
				b.MIG = inventory.Unknown[inventory.MIG](fmt.Errorf("nvmlCall: %w", inventory.ErrNotSupported))
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(1)
			c.harm(&e.reading.Boards[0])
			got := e.scan(t)
			if diff := cmp.Diff(c.want, got.Unusable); diff != "" {
				t.Errorf("unusable (-want +got):\n%s", diff)
			}
			if len(got.GPUs) != 1-len(c.want) || len(got.Problems) != 0 {
				t.Errorf("%d GPUs, problems %+v", len(got.GPUs), got.Problems)
			}
		})
	}
}

// Attributes: an error is one problem, "not supported" is none, and the GPU stays.
func TestAnUnreadableAttributeIsAProblem(t *testing.T) {
	broken := errors.New("Unknown Error")
	attributes := map[string]func(*inventory.Board, *inventory.Function, error){
		"productName": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.ProductName = inventory.Unknown[string](err)
		},
		"brand": func(b *inventory.Board, _ *inventory.Function, err error) { b.Brand = inventory.Unknown[string](err) },
		"architecture": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.Architecture = inventory.Unknown[string](err)
		},
		"serial": func(b *inventory.Board, _ *inventory.Function, err error) { b.Serial = inventory.Unknown[string](err) },
		"addressingMode": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.AddressingMode = inventory.Unknown[string](err)
		},
		"cudaComputeCapability": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.ComputeCapability = inventory.Unknown[inventory.Version](err)
		},
		"memory": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.MemoryBytes = inventory.Unknown[uint64](err)
		},
		"eccEnabled": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.ECCEnabled = inventory.Unknown[bool](err)
		},
		"nvlinkLinks": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.Links = inventory.Unknown[[]inventory.LinkReading](err)
		},
		"nvlinkPeers": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.Peers = inventory.Unknown[[]pci.Address](err)
		},
		"fabric": func(b *inventory.Board, _ *inventory.Function, err error) {
			b.Fabric = inventory.Unknown[inventory.FabricReading](err)
		},
		"numaNode": func(_ *inventory.Board, f *inventory.Function, err error) { f.NUMANode = inventory.Unknown[int](err) },
		"pcieRoot": func(_ *inventory.Board, f *inventory.Function, err error) {
			f.PCIeRoot = inventory.Unknown[string](err)
		},
	}
	for fact, harm := range attributes {
		t.Run(fact, func(t *testing.T) {
			e := node(1)
			harm(&e.reading.Boards[0], &e.functions[0], broken)
			got := e.scan(t)
			if len(got.GPUs) != 1 {
				t.Fatalf("the GPU is gone: %+v", got.Unusable)
			}
			if len(got.Problems) != 1 || got.Problems[0].Fact != fact || got.Problems[0].PCI != bus(0) || !errors.Is(got.Problems[0].Err, broken) {
				t.Errorf("problems are %+v", got.Problems)
			}
			e = node(1)
			harm(&e.reading.Boards[0], &e.functions[0], fmt.Errorf("call: %w", inventory.ErrNotSupported))
			if got := e.scan(t); len(got.GPUs) != 1 || got.Problems != nil {
				t.Errorf("what the board does not have gives the problems %+v and %d GPUs", got.Problems, len(got.GPUs))
			}
		})
	}
}

func TestWhatABoardDoesNotHaveStaysEmpty(t *testing.T) {
	e := node(1)
	b, f := &e.reading.Boards[0], &e.functions[0]
	b.MemoryBytes = inventory.Unknown[uint64](inventory.ErrNotSupported)
	b.ECCEnabled = inventory.Unknown[bool](inventory.ErrNotSupported)
	b.MIG = inventory.Unknown[inventory.MIG](inventory.ErrNotSupported)
	b.Links = inventory.Unknown[[]inventory.LinkReading](inventory.ErrNotSupported)
	b.Peers = inventory.Unknown[[]pci.Address](inventory.ErrNotSupported)
	b.Fabric = inventory.Unknown[inventory.FabricReading](inventory.ErrNotSupported)
	f.NUMANode = inventory.Unknown[int](inventory.ErrNotSupported)
	g := e.scan(t).GPUs[0]
	if g.MemoryBytes != 0 || g.ECCEnabled != nil || g.MIG.Capable || g.NUMANode != nil {
		t.Errorf("memory %d, ECC %v, MIG %+v, NUMA %v", g.MemoryBytes, g.ECCEnabled, g.MIG, g.NUMANode)
	}
	if diff := cmp.Diff(inventory.NVLink{}, g.NVLink); diff != "" {
		t.Errorf("NVLink (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(inventory.Fabric{Healthy: true}, g.Fabric); diff != "" {
		t.Errorf("fabric (-want +got):\n%s", diff)
	}
}

func TestGPUsThatOnlyTheBusShows(t *testing.T) {
	physical := bus(0)
	for name, c := range map[string]struct {
		f      inventory.Function
		reason string
	}{
		"passthrough":      {inventory.Function{PCI: bus(5), Driver: "vfio-pci"}, "bound to the kernel driver vfio-pci, not to nvidia"},
		"open driver":      {inventory.Function{PCI: bus(5), Driver: "nouveau"}, "nouveau"},
		"no driver":        {inventory.Function{PCI: bus(5)}, "no kernel driver is bound to it"},
		"not initialised":  {inventory.Function{PCI: bus(5), Driver: "nvidia"}, "has not initialised it yet"},
		"virtual function": {inventory.Function{PCI: bus(5), Driver: "nvidia", Physical: &physical}, "virtual function of 0000:10:00.0"},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(1)
			e.functions = append([]inventory.Function{c.f}, e.functions...)
			got := e.scan(t)
			if len(got.GPUs) != 1 || len(got.Unusable) != 1 || !strings.Contains(got.Unusable[0].Reason, c.reason) {
				t.Errorf("%d GPUs, unusable %+v, want the reason %q", len(got.GPUs), got.Unusable, c.reason)
			}
			asked := slices.Contains(e.asked, bus(5))
			if want := name == "not initialised"; asked != want {
				t.Errorf("the library was asked about it: %v, want %v", asked, want)
			}
		})
	}
}

func TestNoDriver(t *testing.T) {
	absent := errors.New("libnvidia-ml.so.1 is in none of /driver-root/usr/lib64")
	vfio := inventory.Function{PCI: bus(1), Driver: "vfio-pci"}
	for name, c := range map[string]struct {
		e    edges
		want []string
	}{
		"no hardware": {edges{}, []string{absent.Error(), "no NVIDIA GPU", "no NVIDIA kernel module"}},
		"one GPU":     {edges{functions: []inventory.Function{function(0)}}, []string{"shows 1 NVIDIA GPU,"}},
		"two GPUs":    {edges{functions: []inventory.Function{function(0), vfio}, module: "580.1"}, []string{"shows 2 NVIDIA GPUs", "kernel module 580.1 is loaded"}},
		"blind":       {edges{busErr: errors.New("permission denied"), moduleErr: errors.New("no")}, []string{"bus could not be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.e.readErr = absent
			got := c.e.scan(t)
			if got.Driver.Present || !errors.Is(got.Driver.Err, absent) || len(got.GPUs) != 0 {
				t.Errorf("driver is %+v with %d GPUs", got.Driver, len(got.GPUs))
			}
			for _, text := range c.want {
				if !strings.Contains(got.Driver.Missing, text) {
					t.Errorf("%q does not say %q", got.Driver.Missing, text)
				}
			}
			if len(got.Unusable) != len(c.e.functions) {
				t.Errorf("unusable are %+v", got.Unusable)
			}
			if c.e.busErr != nil && len(got.Problems) != 2 {
				t.Errorf("problems are %+v", got.Problems)
			}
		})
	}
}

// What is excluded is in no list but its own, whoever found it and whatever state it is in, with a
// driver and without.
func TestExcludedGPUs(t *testing.T) {
	byAddress := selection.Selection{Exclude: []selection.Entry{{PCIAddresses: []string{bus(1).String(), bus(5).String(), bus(9).String()}}}}
	for name, c := range map[string]struct {
		change func(*edges)
		usable int
	}{
		"left out of the reading": {func(*edges) {}, 2},
		"no driver":               {func(e *edges) { e.readErr = errors.New("no driver") }, 0},
		"with a problem":          {func(e *edges) { e.functions[1].NUMANode = inventory.Unknown[int](errors.New("broken")) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(4)
			e.functions = append(e.functions, inventory.Function{PCI: bus(5), Driver: "vfio-pci"}, inventory.Function{PCI: bus(6), Driver: "vfio-pci"})
			// The library left out GPU 1, and GPU 3 for what it alone knows.
			e.reading.Boards = []inventory.Board{e.reading.Boards[0], e.reading.Boards[2]}
			e.reading.Excluded = []pci.Address{bus(3), bus(1)}
			c.change(e)
			want, left := []pci.Address{bus(1), bus(3), bus(5)}, []pci.Address{bus(6)}
			if e.readErr != nil {
				e.reading.Excluded = nil
				want, left = []pci.Address{bus(1), bus(5)}, []pci.Address{bus(0), bus(2), bus(3), bus(6)}
			}
			s, err := inventory.NewScanner(e, e).Serving(byAddress).Scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var unusable []pci.Address
			for _, u := range s.Unusable {
				unusable = append(unusable, u.PCI)
			}
			if diff := cmp.Diff(want, s.Excluded) + cmp.Diff(left, unusable); diff != "" || len(s.GPUs) != c.usable || len(s.Problems) > 0 {
				t.Errorf("%d GPUs, problems %v, excluded and unusable (-want +got):\n%s", len(s.GPUs), s.Problems, diff)
			}
			all := []pci.Address{bus(0), bus(1), bus(2), bus(3), bus(5), bus(6)}
			if diff := cmp.Diff(all, s.Addresses()); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// A GPU of which it cannot be told whether it is excluded is nobody's.
func TestUnjudgedGPU(t *testing.T) {
	e := node(2)
	e.reading.Boards[1].Unjudged = errors.New("nvmlDeviceGetName: Unknown Error")
	s := e.scan(t)
	if len(s.GPUs) != 1 || len(s.Unusable) != 1 || !strings.Contains(s.Unusable[0].Reason, "cannot be told whether it is excluded: nvmlDeviceGetName") ||
		s.Unusable[0].Cause != inventory.CauseWithheld {
		t.Errorf("%d GPUs, unusable %+v", len(s.GPUs), s.Unusable)
	}
}

func TestABusThatCannotBeReadCostsItsFactsOnly(t *testing.T) {
	e := node(2)
	e.functions, e.busErr = nil, errors.New("permission denied")
	got := e.scan(t)
	var facts []string
	for _, p := range got.Problems {
		facts = append(facts, p.PCI.String()+" "+p.Fact)
	}
	want := []string{"0000:00:00.0 pciBus", "0000:10:00.0 pciBus", "0000:11:00.0 pciBus"}
	if diff := cmp.Diff(want, facts); diff != "" || len(got.GPUs) != 2 {
		t.Errorf("%d GPUs, problems (-want +got):\n%s", len(got.GPUs), diff)
	}
}

func TestDriverFactsThatCannotBeRead(t *testing.T) {
	e := node(1)
	e.reading.DriverVersion = inventory.Unknown[string](errors.New("x"))
	e.reading.CUDA = inventory.Unknown[inventory.Version](inventory.ErrNotSupported)
	got := e.scan(t)
	if diff := cmp.Diff(inventory.Driver{Present: true}, got.Driver); diff != "" {
		t.Errorf("driver (-want +got):\n%s", diff)
	}
	if len(got.Problems) != 1 || got.Problems[0].Fact != "driverVersion" || len(got.GPUs) != 1 {
		t.Errorf("problems are %+v", got.Problems)
	}
}

func TestScanEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := node(1)
	if _, err := inventory.NewScanner(e, e).Scan(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

package gpusim_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// board is what a child reads about one GPU through NVML.
type board struct {
	Index, Minor, Module                 int
	UUID, Name, Serial, PCI, Part, VBIOS string
	Brand, Architecture                  uint32
	Compute                              string
	Memory, Reserved                     uint64
	CPUs                                 []uint
	Addressing                           uint32
	MIGMode                              string
	LinkCount                            int
	Version, Speed, SwitchLinks          uint32
	Links                                []string
	Levels, NVLink, PCIe                 []int
	Fabric                               string
	Handles                              [3]bool
}

// dump is what a child reads about a node.
type dump struct {
	Driver, NVML string
	CUDA         int
	Boards       []board
}

// must keeps the children short: any unexpected code ends them.
func must[T any](value T, ret nvml.Return) T {
	if ret != nvml.SUCCESS {
		panic(ret.Error())
	}
	return value
}

// code names a return code independent of the library's texts.
func code(ret nvml.Return) string { return fmt.Sprintf("code %d", ret) }

// orText gives the value as text, or the code's text.
func orText[T any](value T, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return code(ret)
	}
	return fmt.Sprint(value)
}

func dumpChild(lib nvml.Interface, _ []string) (any, error) {
	return initialised(lib, func() (dump, error) {
		out := dump{
			Driver: must(lib.SystemGetDriverVersion()),
			NVML:   must(lib.SystemGetNVMLVersion()),
			CUDA:   must(lib.SystemGetCudaDriverVersion_v2()),
		}
		devices := make([]nvml.Device, must(lib.DeviceGetCount()))
		for i := range devices {
			devices[i] = must(lib.DeviceGetHandleByIndex(i))
		}
		for i, d := range devices {
			b := readBoard(lib, d)
			for j, other := range devices {
				b.Levels = append(b.Levels, int(must(d.GetTopologyCommonAncestor(other))))
				if i == j {
					b.NVLink, b.PCIe = append(b.NVLink, -1), append(b.PCIe, -1)
					continue
				}
				b.NVLink = append(b.NVLink, int(must(d.GetP2PStatus(other, nvml.P2P_CAPS_INDEX_NVLINK))))
				b.PCIe = append(b.PCIe, int(must(d.GetP2PStatus(other, nvml.P2P_CAPS_INDEX_PCI))))
			}
			out.Boards = append(out.Boards, b)
		}
		return out, nil
	})
}

func readBoard(lib nvml.Interface, d nvml.Device) board {
	pci := must(d.GetPciInfo())
	major, minor, ret := d.GetCudaComputeCapability()
	memory := must(d.GetMemoryInfo_v2())
	b := board{
		Index: must(d.GetIndex()), Minor: must(d.GetMinorNumber()),
		UUID: must(d.GetUUID()), Name: must(d.GetName()), Serial: orText(d.GetSerial()),
		Part: orText(d.GetBoardPartNumber()), VBIOS: orText(d.GetVbiosVersion()),
		PCI:   text(pci.BusId[:]),
		Brand: uint32(must(d.GetBrand())), Architecture: uint32(must(d.GetArchitecture())),
		Compute: must(fmt.Sprintf("%d.%d", major, minor), ret),
		Memory:  memory.Total, Reserved: memory.Reserved,
		CPUs: must(d.GetCpuAffinity(1024))[:16],
	}
	if module, ret := d.GetModuleId(); ret == nvml.SUCCESS {
		b.Module = module
	}
	if mode, ret := d.GetAddressingMode(); ret == nvml.SUCCESS {
		b.Addressing = mode.Value
	}
	if current, pending, ret := d.GetMigMode(); ret == nvml.SUCCESS {
		b.MIGMode = fmt.Sprint(current, pending)
	} else {
		b.MIGMode = code(ret)
	}
	byUUID, _ := lib.DeviceGetHandleByUUID(b.UUID)
	byPCI, _ := lib.DeviceGetHandleByPciBusId(b.PCI)
	byShortPCI, _ := lib.DeviceGetHandleByPciBusId(strings.ToLower(b.PCI[4:]))
	b.Handles = [3]bool{byUUID == d, byPCI == d, byShortPCI == d}
	readLinks(d, &b)
	return b
}

// text reads a C string; char is signed on some machines only.
func text[T int8 | uint8](field []T) string {
	var b strings.Builder
	for _, c := range field {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func readLinks(d nvml.Device, b *board) {
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}, {FieldId: 147}, {FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}}
	if ret := d.GetFieldValues(fields); ret != nvml.SUCCESS {
		panic(ret.Error())
	}
	for i, out := range []*uint32{nil, &b.SwitchLinks, &b.Speed} {
		value := uint32(fields[i].Value[0]) | uint32(fields[i].Value[1])<<8 | uint32(fields[i].Value[2])<<16
		if nvml.Return(fields[i].NvmlReturn) != nvml.SUCCESS {
			continue
		}
		if out == nil {
			b.LinkCount = int(value)
		} else {
			*out = value
		}
	}
	// One past the last link is asked too: it must be refused.
	for l := range b.LinkCount + 1 {
		state, ret := d.GetNvLinkState(l)
		if ret != nvml.SUCCESS {
			b.Links = append(b.Links, code(ret))
			continue
		}
		b.Version = must(d.GetNvLinkVersion(l))
		remote := must(d.GetNvLinkRemotePciInfo(l))
		kind := must(d.GetNvLinkRemoteDeviceType(l))
		b.Links = append(b.Links, fmt.Sprintf("%d %d %s", state, kind, text(remote.BusId[:])))
	}
	info, ret := d.GetGpuFabricInfo()
	b.Fabric = code(ret)
	if ret == nvml.SUCCESS {
		full := must(d.GetGpuFabricInfoV().V3())
		b.Fabric = fmt.Sprintf("%d %d %d %s %#x %d", info.State, info.Status, info.CliqueId, hex.EncodeToString(info.ClusterUuid[:]), full.HealthMask, full.HealthSummary)
	}
}

// expected says what a child must read, from the node file alone.
func expected(node *nodefile.Node) dump {
	out := dump{Driver: node.Driver.Version, NVML: node.Driver.NVML, CUDA: int(node.CUDA)}
	for i := range node.GPUs {
		out.Boards = append(out.Boards, expectedBoard(node, i))
	}
	return out
}

func expectedBoard(node *nodefile.Node, i int) board {
	g := &node.GPUs[i]
	b := board{
		Index: i, Minor: int(g.Minor), Module: int(g.Module), UUID: g.UUID, Name: g.Board.Product, Serial: g.Serial,
		PCI:  fmt.Sprintf("%08X:%02X:%02X.0", g.PCI.Domain, g.PCI.Bus, g.PCI.Device),
		Part: g.Board.PartNumber, VBIOS: g.Board.VBIOS,
		Brand: nodefile.Brands()[g.Board.Brand], Architecture: nodefile.Architectures()[g.Board.Architecture],
		Compute: g.Board.ComputeCapability, Memory: g.Board.MemoryMiB << 20, Reserved: g.Board.ReservedMiB << 20,
		CPUs: make([]uint, 16), Addressing: nodefile.AddressingModes()[g.Board.Addressing],
		MIGMode: code(nvml.ERROR_NOT_SUPPORTED), Fabric: code(nvml.ERROR_NOT_SUPPORTED), Handles: [3]bool{true, true, true},
	}
	for _, cpu := range g.CPUs {
		b.CPUs[cpu/64] |= 1 << (cpu % 64)
	}
	if g.Board.MIG != nil {
		b.MIGMode = "0 0"
	}
	for _, feature := range g.Board.Unsupported {
		if feature == "moduleID" {
			b.Module = 0
		}
	}
	for j := range node.GPUs {
		level := nodefile.Distance(g, &node.GPUs[j])
		b.Levels = append(b.Levels, int(level))
		if i == j {
			b.NVLink, b.PCIe = append(b.NVLink, -1), append(b.PCIe, -1)
			continue
		}
		b.NVLink = append(b.NVLink, p2p(linked(g, &node.GPUs[j], j)))
		b.PCIe = append(b.PCIe, p2p(level <= node.PeerMaxLevel))
	}
	expectLinks(node, g, &b)
	return b
}

func p2p(ok bool) int {
	if ok {
		return int(nvml.P2P_STATUS_OK)
	}
	return int(nvml.P2P_STATUS_NOT_SUPPORTED)
}

// linked says whether a's links lead to b, directly or over a plane both are on.
func linked(a, b *nodefile.ResolvedGPU, number int) bool {
	for _, l := range a.Links {
		if l.Peer == number {
			return true
		}
		for _, other := range b.Links {
			if l.Plane != 0 && other.Plane == l.Plane {
				return true
			}
		}
	}
	return false
}

func expectLinks(node *nodefile.Node, g *nodefile.ResolvedGPU, b *board) {
	if g.Board.NVLink == nil {
		b.Links = []string{code(nvml.ERROR_NOT_SUPPORTED)}
		return
	}
	b.LinkCount, b.Version, b.Speed = int(g.Board.NVLink.Links), linkRelease(g.Board.NVLink.Version), g.Board.NVLink.SpeedMBps
	for _, l := range g.Links {
		switch {
		case l.Plane != 0:
			b.SwitchLinks++
			b.Links = append(b.Links, "1 2 FFFFFFFF:FF:FF.0")
		case l.Peer >= 0:
			p := node.GPUs[l.Peer].PCI
			b.Links = append(b.Links, fmt.Sprintf("1 0 %08X:%02X:%02X.0", p.Domain, p.Bus, p.Device))
		default:
			b.Links = append(b.Links, "0 255 FFFFFFFF:FF:FF.0")
		}
	}
	b.Links = append(b.Links, code(nvml.ERROR_INVALID_ARGUMENT))
	if f := g.Fabric; f != nil {
		b.Fabric = fmt.Sprintf("%d %d %d %s %#x 1", f.State, f.Status, f.Clique, hex.EncodeToString(f.ClusterUUID[:]), f.HealthMask)
	}
}

func TestPresetsAnswerAsDescribed(t *testing.T) {
	for _, preset := range nodefile.Presets() {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			node := gpusim.New(t, preset)
			got := inChild[dump](t, node, "dump")
			if diff := cmp.Diff(expected(node.Spec()), got); diff != "" {
				t.Errorf("NVML answers differ from the node file (-want +got):\n%s", diff)
			}
		})
	}
}

// linkRelease is NVML's number for the first release of an NVLink generation (nvml.h,
// nvmlNvlinkVersion_t).
func linkRelease(generation uint32) uint32 {
	return map[uint32]uint32{1: 1, 2: 2, 3: 4, 4: 6, 5: 7, 6: 8}[generation]
}

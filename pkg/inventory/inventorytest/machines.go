package inventorytest

import "github.com/gpu-dra/driver/pkg/inventory"

const gib = 1 << 30

func board(product, brand, architecture string, major, minor int, memory uint64, version, mbps int) Board {
	ecc := true
	return Board{LinkVersion: version, LinkMBps: mbps, GPU: inventory.GPU{
		ProductName: product, Brand: brand, Architecture: architecture, AddressingMode: "HMM",
		ComputeMajor: major, ComputeMinor: minor, MemoryBytes: memory, ECCEnabled: &ecc,
		MIG: inventory.MIG{Capable: major >= 8 && brand == "Nvidia"},
	}}
}

func a100() Board {
	return board("NVIDIA A100-SXM4-80GB", "Nvidia", "Ampere", 8, 0, 80*gib, 3, 25000)
}

func a100PCIe() Board {
	return board("NVIDIA A100 80GB PCIe", "Nvidia", "Ampere", 8, 0, 80*gib, 3, 25000)
}

func h100() Board {
	return board("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", 9, 0, 80*gib, 4, 26562)
}

func gb200() Board {
	b := board("NVIDIA GB200", "Nvidia", "Blackwell", 10, 0, 189471*(1<<20), 5, 53125)
	b.GPU.AddressingMode = "ATS"
	return b
}

func v100() Board {
	return board("Tesla V100-SXM2-16GB", "Tesla", "Volta", 7, 0, 16*gib, 2, 25781)
}

func l40s() Board { return board("NVIDIA L40S", "Nvidia", "Ada Lovelace", 8, 9, 46068*(1<<20), 0, 0) }
func t4() Board   { return board("Tesla T4", "Tesla", "Turing", 7, 5, 15360*(1<<20), 0, 0) }

// ClusterUUID is the fabric of the GB200 tray.
const ClusterUUID = "5fb4f8a1-6b1c-4d5a-9c2e-1d2a3b4c5d6e"

// HGXH100 is 8 GPUs on one NVSwitch system whose fabric ends at the node.
func HGXH100() inventory.Snapshot {
	return New().Add(h100(), 8).Switch(0, 8, 18).Fabric("", 0).Snapshot
}

// DGXA100 is 8 GPUs on one NVSwitch system without fabric registration.
func DGXA100() inventory.Snapshot { return New().Add(a100(), 8).Switch(0, 8, 12).Snapshot }

// TwoIslands is two boards of four GPUs, directly linked all-to-all on each board.
func TwoIslands() inventory.Snapshot {
	four := [][]int{{0, 4, 4, 4}, {4, 0, 4, 4}, {4, 4, 0, 4}, {4, 4, 4, 0}}
	return New().Add(a100(), 8).Wire(0, four).Wire(4, four).Snapshot
}

// SixteenGPUs is two NVSwitch systems of eight in one node.
func SixteenGPUs() inventory.Snapshot {
	return New().Add(a100(), 16).Switch(0, 8, 12).Switch(8, 8, 12).Snapshot
}

// BridgePairs is 8 PCIe boards, bridged two by two.
func BridgePairs() inventory.Snapshot {
	n := New().Add(a100PCIe(), 8)
	for i := 0; i < 8; i += 2 {
		n.Wire(i, [][]int{{0, 12}, {12, 0}})
	}
	return n.Snapshot
}

// CubeMesh is the hybrid cube mesh of eight V100.
func CubeMesh() inventory.Snapshot {
	return New().Add(v100(), 8).Wire(0, [][]int{
		{0, 1, 1, 2, 2, 0, 0, 0},
		{1, 0, 2, 1, 0, 2, 0, 0},
		{1, 2, 0, 2, 0, 0, 1, 0},
		{2, 1, 2, 0, 0, 0, 0, 1},
		{2, 0, 0, 0, 0, 1, 1, 2},
		{0, 2, 0, 0, 1, 0, 2, 1},
		{0, 0, 1, 0, 1, 2, 0, 2},
		{0, 0, 0, 1, 2, 1, 2, 0},
	}).Snapshot
}

// L40S is 8 boards without NVLink.
func L40S() inventory.Snapshot { return New().Add(l40s(), 8).Snapshot }

// T4 is 4 boards without NVLink.
func T4() inventory.Snapshot { return New().Add(t4(), 4).Snapshot }

// GB200Tray is 4 GPUs of a rack whose fabric spans nodes, on PCI domains other than 0.
func GB200Tray() inventory.Snapshot {
	n := New().Add(gb200(), 4)
	for i, domain := range []uint32{0x8, 0x9, 0x18, 0x19} {
		n.Snapshot.GPUs[i].PCI.Domain, n.Snapshot.GPUs[i].PCI.Bus = domain, 1
	}
	return n.Switch(0, 4, 18).Fabric(ClusterUUID, 7).Snapshot
}

// Mixed is a bridged pair beside two boards without NVLink.
func Mixed() inventory.Snapshot {
	return New().Add(a100PCIe(), 2).Wire(0, [][]int{{0, 12}, {12, 0}}).Add(t4(), 2).Snapshot
}

// All is every machine by name.
func All() map[string]inventory.Snapshot {
	return map[string]inventory.Snapshot{
		"hgx-h100-8": HGXH100(), "dgx-a100-80": DGXA100(), "two-islands": TwoIslands(), "sixteen": SixteenGPUs(),
		"bridge-pairs": BridgePairs(), "dgx1-v100": CubeMesh(), "l40s-8": L40S(), "t4-4": T4(),
		"gb200-tray": GB200Tray(), "mixed": Mixed(),
	}
}

// Package inventorytest makes snapshots of machines for the tests of packages that work on an
// inventory.Snapshot. It must not be imported by the product.
package inventorytest

import (
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Board is what all GPUs of one model have in common, and where they sit.
type Board struct {
	GPU inventory.GPU
	// LinkVersion is the NVLink generation, LinkMBps one link's bandwidth in one direction.
	LinkVersion, LinkMBps int
}

// Node is a machine under construction.
type Node struct {
	Snapshot inventory.Snapshot
	boards   []Board
}

// New starts a machine with the driver that most tests want.
func New() *Node {
	return &Node{Snapshot: inventory.Snapshot{Driver: inventory.Driver{
		Present: true, Version: "580.95.05", CUDAMajor: 13,
	}}}
}

// Add puts count boards on the bus, behind what is there (64 in all fit). Two boards share a PCIe root, and
// the first half of them is on NUMA node 0, the second on node 1.
func (n *Node) Add(b Board, count int) *Node {
	for i := range count {
		at := len(n.Snapshot.GPUs)
		g := b.GPU
		g.Index, g.Minor = at, at
		g.PCI = pci.Address{Bus: uint8(7 + 3*at)}
		g.UUID = fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", 0xa0+at, at)
		g.Serial = fmt.Sprintf("16502200%05d", at)
		numa := i * 2 / count
		g.NUMANode = &numa
		g.PCIeRoot = fmt.Sprintf("pci0000:%02x", 6+6*(at/2))
		g.NVLink.PeersKnown = true
		n.Snapshot.GPUs = append(n.Snapshot.GPUs, g)
		n.boards = append(n.boards, b)
	}
	return n
}

// Switch joins the GPUs first to first+count-1 by links to switches.
func (n *Node) Switch(first, count, links int) *Node {
	for i := first; i < first+count; i++ {
		n.attach(i, links, inventory.RemoteSwitch, pci.Address{})
		for j := first; j < first+count; j++ {
			n.peer(i, j)
		}
	}
	return n
}

// Wire joins GPUs by direct links; row and column are offsets from first, each entry the
// number of links. The matrix must be symmetric.
func (n *Node) Wire(first int, links [][]int) *Node {
	for i, row := range links {
		for j, count := range row {
			if count > 0 {
				n.attach(first+i, count, inventory.RemoteGPU, n.Snapshot.GPUs[first+j].PCI)
				n.peer(first+i, first+j)
			}
		}
	}
	return n
}

// Fabric puts all GPUs on one NVLink fabric; an empty cluster is a fabric within the node.
func (n *Node) Fabric(cluster string, clique uint32) *Node {
	for i := range n.Snapshot.GPUs {
		n.Snapshot.GPUs[i].Fabric = inventory.Fabric{State: inventory.FabricCompleted, Healthy: true, ClusterUUID: cluster, CliqueID: clique}
	}
	return n
}

func (n *Node) attach(i, count int, remote inventory.Remote, peer pci.Address) {
	link := &n.Snapshot.GPUs[i].NVLink
	link.Version = n.boards[i].LinkVersion
	for range count {
		link.Links = append(link.Links, inventory.Link{Active: true, Remote: remote, Peer: peer, BandwidthMBps: n.boards[i].LinkMBps})
	}
}

func (n *Node) peer(i, j int) {
	if i != j {
		link := &n.Snapshot.GPUs[i].NVLink
		link.Peers = append(link.Peers, n.Snapshot.GPUs[j].PCI)
		slices.SortFunc(link.Peers, pci.Address.Compare)
	}
}

// Clone copies a snapshot so deeply that changing one leaves the other alone.
func Clone(s inventory.Snapshot) inventory.Snapshot {
	s.GPUs = slices.Clone(s.GPUs)
	for i := range s.GPUs {
		s.GPUs[i].NVLink.Links = slices.Clone(s.GPUs[i].NVLink.Links)
		s.GPUs[i].NVLink.Peers = slices.Clone(s.GPUs[i].NVLink.Peers)
	}
	s.Unusable = slices.Clone(s.Unusable)
	s.Problems = slices.Clone(s.Problems)
	return s
}

// Lose takes a GPU out of the snapshot as a scan does when NVML says that it is lost: it stays
// on the bus, its peers lose sight of it, and links that end at it go down.
func Lose(s inventory.Snapshot, at pci.Address) inventory.Snapshot {
	s = cutOff(Clone(s), at)
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g inventory.GPU) bool { return g.PCI == at })
	s.Unusable = append(s.Unusable, inventory.Unusable{PCI: at, Reason: "GPU is lost"})
	return s
}

// Remove takes a GPU out of the machine.
func Remove(s inventory.Snapshot, at pci.Address) inventory.Snapshot {
	s = Lose(s, at)
	s.Unusable = slices.DeleteFunc(s.Unusable, func(u inventory.Unusable) bool { return u.PCI == at })
	return s
}

// Exclude leaves a GPU to others, as a scan does with what the settings exclude.
func Exclude(s inventory.Snapshot, at pci.Address) inventory.Snapshot {
	s = Remove(s, at)
	s.Excluded = append(slices.Clone(s.Excluded), at)
	slices.SortFunc(s.Excluded, pci.Address.Compare)
	return s
}

// MIG switches a GPU's MIG mode on.
func MIG(s inventory.Snapshot, at pci.Address) inventory.Snapshot {
	s = cutOff(Clone(s), at)
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.PCI == at {
			g.MIG = inventory.MIG{Capable: true, Enabled: true, PendingEnabled: true}
			g.NVLink.Peers = nil
		}
	}
	return s
}

// Unlink makes two GPUs lose sight of each other.
func Unlink(s inventory.Snapshot, a, b pci.Address) inventory.Snapshot {
	s = Clone(s)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if other, involved := map[pci.Address]pci.Address{a: b, b: a}[g.PCI]; involved {
			hide(g, other)
		}
	}
	return s
}

func cutOff(s inventory.Snapshot, at pci.Address) inventory.Snapshot {
	for i := range s.GPUs {
		hide(&s.GPUs[i], at)
	}
	return s
}

func hide(g *inventory.GPU, peer pci.Address) {
	g.NVLink.Peers = slices.DeleteFunc(g.NVLink.Peers, func(p pci.Address) bool { return p == peer })
	for i := range g.NVLink.Links {
		if l := &g.NVLink.Links[i]; l.Remote == inventory.RemoteGPU && l.Peer == peer {
			l.Active = false
		}
	}
}

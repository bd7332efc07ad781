package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// State says where a GPU stands with NVLink.
type State string

// The states of a GPU. In all but Joined it has no domain.
const (
	// Joined: the GPU is in a domain.
	Joined State = "joined"
	// NoLinks: the board has no NVLink, or does not say.
	NoLinks State = "no-nvlink"
	// NoIdentity: NVML gives no UUID, or gives one twice, so that a domain cannot name it.
	NoIdentity State = "no-uuid"
	// MIGMode: MIG mode is on, which ends NVLink peer access.
	MIGMode State = "mig-mode"
	// LinksDown: there are links, but none is active.
	LinksDown State = "links-down"
	// FabricPending: the fabric registration has not started or is in progress.
	FabricPending State = "fabric-pending"
	// FabricBroken: the registration completed with an error, or the fabric is degraded.
	FabricBroken State = "fabric-broken"
	// PeersDown: the GPU works but does not reach the other members of its domain.
	PeersDown State = "peers-down"
	// Alone: the GPU works but no other one is left to form a domain with.
	Alone State = "alone"
)

// ports sums up a GPU's active links.
type ports struct {
	active    int
	bandwidth int
	toSwitch  bool
	// direct is true when every active link ends at a GPU.
	direct bool
	peers  []pci.Address
}

func portsOf(links []inventory.Link) ports {
	p := ports{direct: true}
	for _, l := range links {
		if !l.Active {
			continue
		}
		p.active++
		p.bandwidth += l.BandwidthMBps
		switch l.Remote {
		case inventory.RemoteGPU:
			p.peers = append(p.peers, l.Peer)
		case inventory.RemoteSwitch:
			p.toSwitch, p.direct = true, false
		case inventory.RemoteNPU, inventory.RemoteUnknown:
			p.direct = false
		}
	}
	return p
}

// station is one GPU of the snapshot as this package sees it.
type station struct {
	gpu   inventory.GPU
	ports ports
	// state is Joined when the GPU works; whether it really joins is decided later.
	state State
	why   string
	// complete is true when all facts of the GPU could be read.
	complete bool
}

func (s station) works() bool { return s.state == Joined }

// spansNodes tells whether the GPU is on a fabric that several nodes share. A cluster UUID of
// zeros is what single nodes report: as a domain it would join strangers across nodes.
func (s station) spansNodes() bool {
	return s.onFabric() && strings.Trim(s.gpu.Fabric.ClusterUUID, "0-") != ""
}

func (s station) onFabric() bool {
	return s.gpu.Fabric.State != inventory.FabricNotSupported && !s.ports.direct
}

// fabricValue names the fabric clique, equal on all nodes that share it.
func (s station) fabricValue() string {
	return fmt.Sprintf("%s.%d", s.gpu.Fabric.ClusterUUID, s.gpu.Fabric.CliqueID)
}

// survey is a snapshot as this package sees it: its GPUs in the snapshot's order, and which of
// them reach each other over NVLink now.
type survey struct {
	stations []station
	near     [][]bool
	// at finds a station by its UUID; those without a usable UUID are not in it.
	at map[string]int
}

func surveyOf(s inventory.Snapshot) survey {
	out := survey{at: map[string]int{}}
	broken := map[pci.Address]bool{}
	for _, p := range s.Problems {
		broken[p.PCI] = true
	}
	seen := map[string]int{}
	for _, g := range s.GPUs {
		seen[g.UUID]++
	}
	for i, g := range s.GPUs {
		st := station{gpu: g, ports: portsOf(g.NVLink.Links), complete: !broken[g.PCI]}
		st.state, st.why = judge(st)
		if g.UUID == "" || seen[g.UUID] > 1 {
			st.state, st.why = NoIdentity, fmt.Sprintf("NVML reports UUID %q for %d GPUs", g.UUID, seen[g.UUID])
		} else {
			out.at[g.UUID] = i
		}
		out.stations = append(out.stations, st)
	}
	for i := range out.stations {
		out.near = append(out.near, make([]bool, len(out.stations)))
		for j := range i {
			linked := linked(out.stations[i], out.stations[j])
			out.near[i][j], out.near[j][i] = linked, linked
		}
	}
	return out
}

func judge(s station) (State, string) {
	switch {
	case s.gpu.MIG.Enabled:
		return MIGMode, "MIG mode is on, and MIG has no NVLink peer access"
	case len(s.gpu.NVLink.Links) == 0:
		return NoLinks, "NVML reports no NVLink on this board"
	case s.ports.active == 0:
		return LinksDown, fmt.Sprintf("none of %d NVLinks is active", len(s.gpu.NVLink.Links))
	case !s.onFabric():
		return Joined, ""
	case s.gpu.Fabric.State != inventory.FabricCompleted:
		return FabricPending, fmt.Sprintf("NVLink fabric registration is %s", s.gpu.Fabric.State)
	case !s.gpu.Fabric.Healthy:
		return FabricBroken, "NVLink fabric is not healthy: " + s.gpu.Fabric.Reason
	}
	return Joined, ""
}

// linked tells whether two GPUs reach each other over NVLink now.
func linked(a, b station) bool {
	if !a.works() || !b.works() || !sameFabric(a, b) {
		return false
	}
	if slices.Contains(a.gpu.NVLink.Peers, b.gpu.PCI) || slices.Contains(b.gpu.NVLink.Peers, a.gpu.PCI) {
		return true
	}
	if a.gpu.NVLink.PeersKnown || b.gpu.NVLink.PeersKnown {
		return false
	}
	direct := slices.Contains(a.ports.peers, b.gpu.PCI) && slices.Contains(b.ports.peers, a.gpu.PCI)
	return direct || a.ports.toSwitch && b.ports.toSwitch
}

// sameFabric is false for two GPUs on a fabric in different places, and where only one of them
// is on a fabric that spans nodes: its value would promise the other one's reach to strangers.
func sameFabric(a, b station) bool {
	if a.spansNodes() != b.spansNodes() {
		return false
	}
	if !a.onFabric() || !b.onFabric() {
		return true
	}
	return a.gpu.Fabric.ClusterUUID == b.gpu.Fabric.ClusterUUID && a.gpu.Fabric.CliqueID == b.gpu.Fabric.CliqueID
}

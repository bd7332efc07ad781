package nodefile

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Brands maps names in board files to nvmlBrandType_t.
func Brands() map[string]uint32 {
	return map[string]uint32{"unknown": 0, "quadro": 1, "tesla": 2, "geforce": 5, "titan": 6, "quadroRTX": 12, "nvidiaRTX": 13, "nvidia": 14}
}

// Architectures maps names in board files to nvmlDeviceArchitecture_t.
func Architectures() map[string]uint32 {
	return map[string]uint32{"pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10, "rubin": 13, "unknown": 0xffffffff}
}

// AddressingModes maps names in board files to nvmlDeviceAddressingModeType_t.
func AddressingModes() map[string]uint32 { return map[string]uint32{"none": 0, "hmm": 1, "ats": 2} }

// FabricStates maps names in node files to nvmlGpuFabricState_t.
func FabricStates() map[string]uint32 {
	return map[string]uint32{"notSupported": 0, "notStarted": 1, "inProgress": 2, "completed": 3}
}

func oneOf(m map[string]uint32) string {
	return "must be one of " + strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// ParseID reads a PCI id such as 0x233010de.
func ParseID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 0, 32)
	return uint32(id), err
}

func (r *resolver) choice(path *field.Path, value string, allowed map[string]uint32) {
	if _, ok := allowed[value]; !ok {
		r.bad(path, value, oneOf(allowed))
	}
}

func (r *resolver) board(path *field.Path, b *Board) {
	r.choice(path.Child("brand"), b.Brand, Brands())
	r.choice(path.Child("architecture"), b.Architecture, Architectures())
	r.choice(path.Child("addressing"), b.Addressing, AddressingModes())
	if b.Product == "" || len(b.Product) > 95 {
		r.bad(path.Child("product"), b.Product, "must have 1 to 95 characters")
	}
	if _, _, ok := twoNumbers(b.ComputeCapability); !ok {
		r.bad(path.Child("computeCapability"), b.ComputeCapability, "must be such as 9.0")
	}
	const most = 1 << 30 // MiB: one PiB
	if b.MemoryMiB > most || b.ReservedMiB > b.MemoryMiB {
		r.bad(path.Child("reservedMiB"), b.ReservedMiB, "must be at most memoryMiB, and that at most 1073741824")
	}
	r.boardNumbers(path, b)
	if b.MIG != nil {
		r.mig(path.Child("mig"), b.MIG)
	}
}

// boardNumbers checks ids and the sizes of what ends up in fixed fields.
func (r *resolver) boardNumbers(path *field.Path, b *Board) {
	for name, id := range map[string]string{"pciDevice": b.PCIDevice, "pciSubsystem": b.PCISubsystem, "pciClass": b.PCIClass} {
		if _, err := ParseID(id); err != nil && (id != "" || name != "pciClass") {
			r.bad(path.Child(name), id, "must be a 32-bit number such as 0x233010de")
		}
	}
	if len(b.PartNumber) > 79 || len(b.VBIOS) > 31 {
		r.bad(path.Child("partNumber"), b.PartNumber, "must have at most 79 characters, vbios at most 31")
	}
	if l := b.NVLink; l != nil && (l.Links == 0 || l.Links > 36) {
		r.bad(path.Child("nvlink", "links"), l.Links, "must be 1 to 36; leave nvlink out for none")
	}
}

func (r *resolver) mig(path *field.Path, m *BoardMIG) {
	if m.Units == 0 || m.Units > 64 || len(m.Profiles) > 24 {
		r.bad(path.Child("units"), m.Units, "must be 1 to 64, with at most 24 profiles")
	}
	for i := range m.Profiles {
		r.profile(path.Child("profiles").Index(i), m, &m.Profiles[i])
	}
}

// maxInstanceID is the highest id of a GPU instance that has capability files.
const maxInstanceID = 14

func (r *resolver) profile(at *field.Path, m *BoardMIG, p *MIGProfile) {
	if p.Name == "" || len(p.Name) > 43 {
		r.bad(at.Child("name"), p.Name, "must have 1 to 43 characters")
	}
	if p.Slices == 0 || p.Slices > 8 || p.Max == 0 {
		r.bad(at.Child("slices"), p.Slices, "must be 1 to 8, and max at least 1")
	}
	if p.Size == 0 || p.Size > m.Units || len(p.Starts) == 0 || len(p.Starts) > 16 {
		r.bad(at.Child("starts"), p.Starts, "must be 1 to 16 placements of a size above 0 and up to the board's units")
		return
	}
	for j, start := range p.Starts {
		if uint64(start)+uint64(p.Size) > uint64(m.Units) {
			r.bad(at.Child("starts").Index(j), start, "must end within the board's units")
		} else if m.Units/p.Size-1+start/p.Size > maxInstanceID {
			r.bad(at.Child("starts").Index(j), start, "gives a GPU instance id above 14: use fewer and larger units")
		}
	}
}

// partition resolves the partitioning of one GPU: its own, else the node's where the board has MIG.
func (r *resolver) partition(path *field.Path, own *MIG, board *Board) MIG {
	in := own
	if in == nil {
		in, path = r.file.MIG, field.NewPath("mig")
	}
	if in == nil || (board.MIG == nil && own == nil) {
		return MIG{}
	}
	if board.MIG == nil {
		r.bad(path, board.Product, "this GPU's board has no MIG")
		return MIG{}
	}
	if !in.Enabled && len(in.Instances) > 0 {
		r.bad(path.Child("enabled"), in.Enabled, "must be true where there are instances")
	}
	for i, instance := range in.Instances {
		at := path.Child("instances").Index(i)
		profile := board.MIG.Profile(instance.Profile)
		if profile == nil {
			r.bad(at.Child("profile"), instance.Profile, "must be a profile of the board: "+strings.Join(board.MIG.names(), ", "))
		} else if instance.Start != nil && !slices.Contains(profile.Starts, *instance.Start) {
			r.bad(at.Child("start"), *instance.Start, fmt.Sprintf("must be one of %v", profile.Starts))
		}
	}
	return *in
}

// Profile finds a profile by its name, nil if the board has none of it.
func (m *BoardMIG) Profile(name string) *MIGProfile {
	for i := range m.Profiles {
		if m.Profiles[i].Name == name {
			return &m.Profiles[i]
		}
	}
	return nil
}

func (m *BoardMIG) names() []string {
	var out []string
	for i := range m.Profiles {
		out = append(out, m.Profiles[i].Name)
	}
	return out
}

// fabric resolves the registration of one GPU: its own, else the node's.
func (r *resolver) fabric(path *field.Path, own *Fabric, board *Board) *ResolvedFabric {
	in := own
	if in == nil {
		in = r.file.Fabric
		path = nil
	}
	if !board.Fabric || in == nil {
		return nil
	}
	path = path.Child("fabric")
	r.choice(path.Child("state"), in.State, FabricStates())
	out := &ResolvedFabric{State: FabricStates()[in.State], Status: in.Status, Clique: in.Clique, Required: true}
	if in.HealthMask != nil {
		out.HealthMask = *in.HealthMask
	} else if in.State == "completed" {
		out.HealthMask = healthyMask
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(in.ClusterUUID, "-", ""))
	if err != nil || (len(raw) != 16 && len(raw) != 0) {
		r.bad(path.Child("clusterUUID"), in.ClusterUUID, "must be a UUID, or empty for a single machine")
	}
	copy(out.ClusterUUID[:], raw)
	return out
}

// links runs the NVLinks; order maps positions in the file to places in PCI order.
func (r *resolver) links(order []int) {
	path := field.NewPath("nvlink")
	for p, plane := range r.file.NVLink.Switches {
		for i, position := range plane {
			gpu := r.linked(path.Child("switches").Index(p).Index(i), order, position)
			if gpu == nil || !r.attach(path.Child("switches").Index(p).Index(i), gpu, Link{Peer: -1, Plane: uint32(p + 1)}, gpu.Board.NVLink.Links) {
				return
			}
		}
	}
	for g, group := range r.file.NVLink.Direct {
		at := path.Child("direct").Index(g)
		for i, a := range group.GPUs {
			for j := i + 1; j < len(group.GPUs); j++ {
				if !r.connect(at, order, a, group.GPUs[j], group.Links) {
					return
				}
			}
		}
	}
	for i := range r.node.GPUs {
		gpu := &r.node.GPUs[i]
		for gpu.Board.NVLink != nil && len(gpu.Links) < int(gpu.Board.NVLink.Links) {
			gpu.Links = append(gpu.Links, Link{Peer: -1})
		}
	}
}

// linked finds the GPU at a position in the file, which must have NVLink.
func (r *resolver) linked(at *field.Path, order []int, position int) *ResolvedGPU {
	if position < 0 || position >= len(order) {
		r.bad(at, position, "must be a position in gpus")
		return nil
	}
	gpu := &r.node.GPUs[order[position]]
	if gpu.Board.NVLink == nil {
		r.bad(at, position, "this GPU's board has no NVLink")
		return nil
	}
	return gpu
}

// attach gives a GPU more links, as far as its board has them.
func (r *resolver) attach(at *field.Path, gpu *ResolvedGPU, link Link, links uint32) bool {
	if uint64(len(gpu.Links))+uint64(links) > uint64(gpu.Board.NVLink.Links) {
		r.bad(at, links, fmt.Sprintf("gives GPU %s more links connected than the board has (%d)", gpu.PCI, gpu.Board.NVLink.Links))
		return false
	}
	for range links {
		gpu.Links = append(gpu.Links, link)
	}
	return true
}

func (r *resolver) connect(at *field.Path, order []int, a, b int, links uint32) bool {
	first, second := r.linked(at.Child("gpus"), order, a), r.linked(at.Child("gpus"), order, b)
	if first == nil || second == nil {
		return false
	}
	if a == b || links == 0 {
		r.bad(at, links, "must connect different GPUs by at least one link")
		return false
	}
	return r.attach(at.Child("links"), first, Link{Peer: order[b]}, links) && r.attach(at.Child("links"), second, Link{Peer: order[a]}, links)
}

// Distance returns the PCIe level between two GPUs.
func Distance(a, b *ResolvedGPU) Level {
	if a.PCI == b.PCI {
		return LevelInternal
	}
	if a.Root != b.Root {
		if a.NUMA >= 0 && a.NUMA == b.NUMA {
			return LevelNode
		}
		return LevelSystem
	}
	shared := 0
	for shared < len(a.Bridges) && shared < len(b.Bridges) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch {
	case shared == 0:
		return LevelPHB
	// Only the ports below the last switch differ.
	case shared >= len(a.Bridges)-1 && shared >= len(b.Bridges)-1:
		return LevelPIX
	default:
		return LevelPXB
	}
}

package topology

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// MaxCliques is the largest number of cliques that one GPU lists. Beyond it the largest are
// kept, and the rest is counted in Placement.CliquesOmitted.
const MaxCliques = 8

// Assignment is where each GPU of a snapshot stands with NVLink.
type Assignment struct {
	// GPUs has one entry for every GPU of the snapshot.
	GPUs map[pci.Address]Placement
	// Domains are the node's domains at full health, also those with no member left.
	Domains []Domain
}

// Domain is one NVLink domain of this node.
type Domain struct {
	// Home is the domain's identity at full health; it equals Placement.Home of its members.
	Home string
	// Value is what its members carry; empty while there is none to carry it.
	Value string
	// Members are the addresses at full health, sorted, lost ones included.
	Members []pci.Address
	// Live are those of them that carry Value now, sorted.
	Live []pci.Address
}

// Placement is where one GPU stands with NVLink.
type Placement struct {
	// Domain is the value that all GPUs share which this one reaches; empty for none.
	Domain string
	// State says why Domain is empty; Why says it for people.
	State State
	Why   string
	// Home is the domain that the GPU belongs to at full health; empty for none.
	Home string
	// Size is the number of members on this node at full health; 0 without a domain.
	Size int
	// ClusterUUID and CliqueID name the place in a fabric that spans nodes, once its
	// registration is complete; empty and 0 elsewhere, and never a UUID of zeros.
	ClusterUUID string
	CliqueID    uint32
	// Links is the number of active links, BandwidthMBps their sum in MB/s in one direction.
	Links         int
	BandwidthMBps int
	// Cliques are all maximal sets that reach each other and have this GPU as a member, the
	// largest first, at most MaxCliques.
	Cliques        []string
	CliquesOmitted int
}

// Resolve places every GPU of the snapshot and returns what is to be remembered. Given the
// memory that it returned, it gives the same answer and the same memory again.
func Resolve(snapshot inventory.Snapshot, memory Memory) (Assignment, Memory) {
	now := surveyOf(snapshot)
	next := memory.learn(snapshot, now)
	r := newResolver(now, next)
	for _, d := range next.Domains {
		r.joinDomain(d)
	}
	r.joinLoners()
	r.listCliques(next)
	return Assignment{GPUs: r.placed, Domains: r.domains}, next
}

// resolver collects placements.
type resolver struct {
	survey
	boards  map[string]Board
	placed  map[pci.Address]Placement
	domains []Domain
	// taken are the domain values in use: two domains never share one.
	taken map[string]bool
	// values are the published values of domains by identity at full health.
	values map[string]string
}

func newResolver(now survey, memory Memory) *resolver {
	r := &resolver{
		survey: now, boards: map[string]Board{},
		placed: map[pci.Address]Placement{}, taken: map[string]bool{}, values: map[string]string{},
	}
	for _, b := range memory.Boards {
		r.boards[b.UUID] = b
	}
	for _, s := range r.stations {
		p := Placement{State: s.state, Why: s.why, Links: s.ports.active, BandwidthMBps: s.ports.bandwidth}
		if s.spansNodes() && s.gpu.Fabric.State == inventory.FabricCompleted {
			p.ClusterUUID, p.CliqueID = s.gpu.Fabric.ClusterUUID, s.gpu.Fabric.CliqueID
		}
		if s.works() {
			p.State, p.Why = Alone, "no other GPU is left on this node that it reaches over NVLink and that is in no larger domain"
		}
		r.placed[s.gpu.PCI] = p
	}
	return r
}

// joinDomain gives the domain's value to those members that reach each other now.
func (r *resolver) joinDomain(d KnownDomain) {
	domain := Domain{Home: d.Value}
	for _, uuid := range d.Members {
		i, present := r.at[uuid]
		if !present {
			domain.Members = append(domain.Members, r.boards[uuid].PCI)
			continue
		}
		at := r.stations[i].gpu.PCI
		domain.Members = append(domain.Members, at)
		p := r.placed[at]
		p.Home = d.Value
		if r.stations[i].works() {
			p.State, p.Why = PeersDown, "it does not reach the other members of its NVLink domain"
		}
		r.placed[at] = p
	}
	reached := r.reached(d.Members)
	if len(reached) > 0 {
		domain.Value = r.claim(d.Value, reached[0])
	}
	for _, s := range reached {
		p := r.placed[s.gpu.PCI]
		if domain.Value == "" {
			p.Why = "it does not reach the GPUs of this node that have the name of its fabric clique"
		} else {
			p.Domain, p.State, p.Why, p.Size = domain.Value, Joined, "", len(d.Members)
			domain.Live = append(domain.Live, s.gpu.PCI)
		}
		r.placed[s.gpu.PCI] = p
	}
	r.values[d.Value] = domain.Value
	slices.SortFunc(domain.Members, pci.Address.Compare)
	slices.SortFunc(domain.Live, pci.Address.Compare)
	r.domains = append(r.domains, domain)
}

// claim returns the value that a domain publishes, or none where another domain of this node
// has it already: two groups that do not reach each other must not look like one.
func (r *resolver) claim(home string, member station) string {
	value := home
	if member.spansNodes() {
		value = member.fabricValue()
	}
	if r.taken[value] {
		return ""
	}
	r.taken[value] = true
	return value
}

// reached returns the largest set of the members that work and reach each other now. A single
// one is taken only when it is not cut off from another member that works too.
func (r *resolver) reached(members []string) []station {
	var at []int
	for _, uuid := range members {
		if i, present := r.at[uuid]; present && r.stations[i].works() && len(at) < maxVertices {
			at = append(at, i)
		}
	}
	m := make(mesh, len(at))
	for i := range at {
		for j := range i {
			if r.near[at[i]][at[j]] {
				m.join(i, j)
			}
		}
	}
	best := newSearch(m).largest(everything(len(m)))
	if len(best) == 0 || best[0].count() == 1 && len(at) > 1 {
		return nil
	}
	var out []station
	for v := range best[0].all() {
		out = append(out, r.stations[at[v]])
	}
	return out
}

// joinLoners places GPUs that work, have no partner on this node, and share a fabric with
// other nodes.
func (r *resolver) joinLoners() {
	for _, s := range r.stations {
		p := r.placed[s.gpu.PCI]
		if p.State != Alone || !s.spansNodes() {
			continue
		}
		value := r.claim("", s)
		if value == "" {
			continue
		}
		p.Domain, p.State, p.Why, p.Size = value, Joined, "", 1
		p.Home, p.Cliques = value, []string{value}
		r.placed[s.gpu.PCI] = p
		r.domains = append(r.domains, Domain{Home: value, Value: value, Members: []pci.Address{s.gpu.PCI}, Live: []pci.Address{s.gpu.PCI}})
	}
}

// listCliques gives each GPU the maximal cliques that it is in.
func (r *resolver) listCliques(memory Memory) {
	for _, group := range connected(memory.Boards) {
		search := newSearch(meshOf(group))
		for _, set := range search.maximal(everything(len(group))) {
			members := pick(group, set)
			value := memory.known(members).Value
			if published, isDomain := r.values[value]; isDomain && published != "" {
				value = published
			}
			for _, s := range r.reached(members) {
				p := r.placed[s.gpu.PCI]
				if len(p.Cliques) < MaxCliques {
					p.Cliques = append(p.Cliques, value)
				} else {
					p.CliquesOmitted++
				}
				r.placed[s.gpu.PCI] = p
			}
		}
	}
}

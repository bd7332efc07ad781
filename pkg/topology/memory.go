package topology

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Memory is the node's NVLink topology at full health. The zero value knows nothing. It is a
// value: Resolve returns a new one and never changes the one it was given.
type Memory struct {
	// Boards are the GPUs that were ever seen linked, sorted by UUID.
	Boards []Board
	// Domains are what the boards are parted into, largest first within connected boards.
	Domains []KnownDomain
	// Unknown keeps JSON members that a newer version wrote.
	Unknown jsontext.Value
}

// Board is one remembered GPU.
type Board struct {
	UUID string `json:"uuid"`
	// PCI is where the board was last seen.
	PCI pci.Address `json:"pci"`
	// Links is the greatest number of active links seen.
	Links int `json:"links"`
	// Peers are the UUIDs of the boards it reaches at full health, sorted.
	Peers   []string       `json:"peers"`
	Unknown jsontext.Value `json:",embed"`
}

// KnownDomain is a domain at full health.
type KnownDomain struct {
	// Value identifies the members on any node: a hash of their UUIDs.
	Value string `json:"value"`
	// Members are UUIDs, sorted.
	Members []string       `json:"members"`
	Unknown jsontext.Value `json:",embed"`
}

// domainValue is the identity of a set of boards: 128 bits of a hash over the sorted UUIDs.
func domainValue(members []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(members)), "\n")))
	return hex.EncodeToString(sum[:16])
}

// learner works on a copy of a Memory while a snapshot is taken in.
type learner struct {
	survey
	boards map[string]*record
	// fresh are the UUIDs that the memory did not have.
	fresh map[string]bool
	// heirs are new boards in the place of swapped ones, with the peers of those.
	heirs map[string]map[string]bool
}

// record is a Board with its peers as a set.
type record struct {
	Board
	peers map[string]bool
}

// learn gives the memory after a snapshot.
func (m Memory) learn(snapshot inventory.Snapshot, now survey) Memory {
	l := learner{survey: now, boards: map[string]*record{}, fresh: map[string]bool{}, heirs: map[string]map[string]bool{}}
	for _, b := range m.Boards {
		peers := map[string]bool{}
		for _, p := range b.Peers {
			peers[p] = true
		}
		l.boards[b.UUID] = &record{Board: b, peers: peers}
	}
	l.dropSwapped(snapshot)
	l.dropExcluded(snapshot)
	l.addLinks()
	l.inheritLinks()
	l.dropMovedLinks()
	l.dropRemoved(snapshot)
	return m.with(l.sorted())
}

// dropSwapped forgets boards in whose place another one answers.
func (l *learner) dropSwapped(snapshot inventory.Snapshot) {
	at := map[pci.Address]string{}
	for _, g := range snapshot.GPUs {
		at[g.PCI] = g.UUID
	}
	for uuid, b := range l.boards {
		if _, present := l.at[uuid]; present {
			continue
		}
		if other := at[b.PCI]; other != "" && other != uuid {
			if l.heirs[other] == nil {
				l.heirs[other] = map[string]bool{}
			}
			maps.Copy(l.heirs[other], b.peers)
			l.drop(uuid)
		}
	}
}

// dropExcluded forgets boards that are left to others: a domain has no member that nobody gets.
func (l *learner) dropExcluded(snapshot inventory.Snapshot) {
	for uuid, b := range l.boards {
		if slices.Contains(snapshot.Excluded, b.PCI) {
			l.drop(uuid)
		}
	}
}

// addLinks takes in what works now.
func (l *learner) addLinks() {
	for i, a := range l.stations {
		for j, b := range l.stations[:i] {
			if l.near[i][j] {
				l.board(a).peers[b.gpu.UUID] = true
				l.board(b).peers[a.gpu.UUID] = true
			}
		}
	}
	for uuid, b := range l.boards {
		if i, present := l.at[uuid]; present {
			s := l.stations[i]
			b.PCI, b.Links = s.gpu.PCI, max(b.Links, s.ports.active)
		}
	}
}

// inheritLinks lets a new board reach those absent boards that the one in its place reached:
// the wiring of the slot is the same. What is present speaks for itself.
func (l *learner) inheritLinks() {
	for uuid, peers := range l.heirs {
		heir := l.boards[uuid]
		if heir == nil {
			continue
		}
		for peer := range peers {
			if _, present := l.at[peer]; !present && l.boards[peer] != nil {
				heir.peers[peer], l.boards[peer].peers[uuid] = true, true
			}
		}
	}
}

func (l *learner) board(s station) *record {
	uuid := s.gpu.UUID
	if l.boards[uuid] == nil {
		l.boards[uuid] = &record{Board: Board{UUID: uuid}, peers: map[string]bool{}}
		l.fresh[uuid] = true
	}
	return l.boards[uuid]
}

// dropMovedLinks forgets links between boards that have all their links and were read in full
// but do not reach each other: nothing is broken, the wiring is another one.
func (l *learner) dropMovedLinks() {
	whole := func(b *record) bool {
		i, present := l.at[b.UUID]
		return present && l.stations[i].works() && l.stations[i].complete && l.stations[i].ports.active >= b.Links
	}
	for uuid, a := range l.boards {
		if !whole(a) {
			continue
		}
		for peer := range a.peers {
			if b := l.boards[peer]; whole(b) && !l.near[l.at[uuid]][l.at[peer]] {
				delete(a.peers, peer)
				delete(b.peers, uuid)
			}
		}
	}
}

// dropRemoved forgets boards that left the bus, once a new board joined their peers.
func (l *learner) dropRemoved(snapshot inventory.Snapshot) {
	if len(l.fresh) == 0 {
		return
	}
	onBus := map[pci.Address]bool{}
	for _, u := range snapshot.Unusable {
		onBus[u.PCI] = true
	}
	for _, group := range connected(l.sorted()) {
		if !slices.ContainsFunc(group, func(b Board) bool { return l.fresh[b.UUID] }) {
			continue
		}
		for _, b := range group {
			if _, present := l.at[b.UUID]; !present && !onBus[b.PCI] {
				l.drop(b.UUID)
			}
		}
	}
}

func (l *learner) drop(uuid string) {
	for peer := range l.boards[uuid].peers {
		delete(l.boards[peer].peers, uuid)
	}
	delete(l.boards, uuid)
}

// sorted renders the boards that have peers.
func (l *learner) sorted() []Board {
	var out []Board
	for _, uuid := range slices.Sorted(maps.Keys(l.boards)) {
		b := l.boards[uuid]
		if len(b.peers) == 0 {
			continue
		}
		b.Peers = slices.Sorted(maps.Keys(b.peers))
		out = append(out, b.Board)
	}
	return out
}

// with gives the memory with other boards. Domains are parted anew only when boards or links
// differ, so that a later version of this package does not rename what nobody touched.
func (m Memory) with(boards []Board) Memory {
	same := slices.EqualFunc(m.Boards, boards, func(a, b Board) bool {
		return a.UUID == b.UUID && slices.Equal(a.Peers, b.Peers)
	})
	out := Memory{Boards: boards, Domains: m.Domains, Unknown: m.Unknown}
	if same && (len(m.Domains) > 0 || len(boards) == 0) {
		return out
	}
	out.Domains = nil
	for _, group := range connected(boards) {
		for _, set := range partition(meshOf(group)) {
			members := pick(group, set)
			out.Domains = append(out.Domains, m.known(members))
		}
	}
	return out
}

// known returns the domain of exactly these members: the remembered one, or a new one.
func (m Memory) known(members []string) KnownDomain {
	for _, d := range m.Domains {
		if slices.Equal(d.Members, members) {
			return d
		}
	}
	return KnownDomain{Value: domainValue(members), Members: members}
}

// connected parts boards (sorted by UUID) into groups that hang together, each sorted and cut
// to maxVertices, in the order of their first members.
func connected(boards []Board) [][]Board {
	index := map[string]int{}
	for i, b := range boards {
		index[b.UUID] = i
	}
	var groups [][]Board
	seen := make([]bool, len(boards))
	for start := range boards {
		if seen[start] {
			continue
		}
		seen[start] = true
		queue := []int{start}
		for i := 0; i < len(queue); i++ {
			for _, peer := range boards[queue[i]].Peers {
				if j, ok := index[peer]; ok && !seen[j] {
					seen[j] = true
					queue = append(queue, j)
				}
			}
		}
		slices.Sort(queue)
		group := make([]Board, 0, len(queue))
		for _, i := range queue[:min(len(queue), maxVertices)] {
			group = append(group, boards[i])
		}
		groups = append(groups, group)
	}
	return groups
}

// meshOf is the graph of one group; vertices are numbered in the group's order.
func meshOf(group []Board) mesh {
	m := make(mesh, len(group))
	for i, b := range group {
		for _, peer := range b.Peers {
			j, ok := slices.BinarySearchFunc(group, peer, func(b Board, uuid string) int { return cmp.Compare(b.UUID, uuid) })
			if ok && i != j {
				m.join(i, j)
			}
		}
	}
	return m
}

// pick returns the UUIDs of a set of vertices.
func pick(group []Board, set vertices) []string {
	out := make([]string, 0, set.count())
	for v := range set.all() {
		out = append(out, group[v].UUID)
	}
	return out
}

package topology

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// maxVertices is the largest group of connected boards that is searched: one machine word.
const maxVertices = 64

// searchSteps bounds the search for cliques. Counting steps instead of time keeps the answer
// the same on a slow machine. Real machines need a few hundred.
const searchSteps = 100_000

// vertices is a set of vertices of a mesh.
type vertices uint64

func (v vertices) has(i int) bool { return v&(1<<i) != 0 }
func (v vertices) count() int     { return bits.OnesCount64(uint64(v)) }
func (v vertices) first() int     { return bits.TrailingZeros64(uint64(v)) }

// all yields the members in ascending order.
func (v vertices) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := v; rest != 0; rest &= rest - 1 {
			if !yield(rest.first()) {
				return
			}
		}
	}
}

// everything is the set of the first n vertices.
func everything(n int) vertices {
	if n >= maxVertices {
		return ^vertices(0)
	}
	return 1<<n - 1
}

// mesh is an undirected graph of at most maxVertices vertices: for each the set of its
// neighbours, without itself.
type mesh []vertices

func (m mesh) join(a, b int) {
	m[a] |= 1 << b
	m[b] |= 1 << a
}

// complete tells whether all members of the set are neighbours of each other.
func (m mesh) complete(set vertices) bool {
	for v := range set.all() {
		if set&^m[v] != 1<<v {
			return false
		}
	}
	return true
}

// search looks for cliques within a budget of steps.
type search struct {
	mesh  mesh
	steps int
}

func newSearch(m mesh) *search { return &search{mesh: m, steps: searchSteps} }

func (s *search) spent() bool { return s.steps <= 0 }

// maximal returns the maximal cliques of the subgraph, the largest first and equals in vertex
// order. When the budget runs out it returns those found by then, at least one.
func (s *search) maximal(within vertices) []vertices {
	if within == 0 {
		return nil
	}
	if s.mesh.complete(within) {
		return []vertices{within}
	}
	var found []vertices
	s.expand(0, within, 0, &found)
	slices.SortFunc(found, compareCliques)
	return found
}

// expand is the method of Bron and Kerbosch with a pivot: chosen can be grown by open; done
// holds vertices whose cliques were all found already.
func (s *search) expand(chosen, open, done vertices, found *[]vertices) {
	s.steps--
	if open == 0 {
		if done == 0 {
			*found = append(*found, chosen)
		}
		return
	}
	pivot, most := 0, -1
	for v := range (open | done).all() {
		if n := (open & s.mesh[v]).count(); n > most {
			pivot, most = v, n
		}
	}
	for v := range (open &^ s.mesh[pivot]).all() {
		if s.spent() && len(*found) > 0 {
			return
		}
		s.expand(chosen|1<<v, open&s.mesh[v], done&s.mesh[v], found)
		open &^= 1 << v
		done |= 1 << v
	}
}

// largest returns all cliques of the greatest size within the set.
func (s *search) largest(within vertices) []vertices {
	found := s.maximal(within)
	for i, c := range found {
		if c.count() < found[0].count() {
			return found[:i]
		}
	}
	return found
}

// compareCliques puts larger sets first, and equals in the order of their sorted members.
func compareCliques(a, b vertices) int {
	return cmp.Or(cmp.Compare(b.count(), a.count()),
		cmp.Compare(bits.Reverse64(uint64(b)), bits.Reverse64(uint64(a))))
}

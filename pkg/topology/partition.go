package topology

import "slices"

// partition parts the mesh into cliques of two and more vertices, as the package comment says.
// Vertices that are left alone are in none of them.
func partition(m mesh) []vertices {
	p := packing{search: newSearch(m)}
	p.extend(everything(len(m)), nil)
	return p.best
}

// packing is the search for the best way to part a mesh: depth first, always taking one of the
// largest cliques that are left. The first descent is the greedy answer; the others are tried
// only while they can still beat the best one.
type packing struct {
	*search
	best  []vertices
	found bool
}

func (p *packing) extend(rest vertices, chosen []vertices) {
	cliques := p.largest(rest)
	if len(cliques) == 0 || cliques[0].count() < 2 {
		if !p.found || slices.Compare(sizes(chosen), sizes(p.best)) > 0 {
			p.best, p.found = slices.Clone(chosen), true
		}
		return
	}
	if p.found && slices.Compare(bound(chosen, cliques[0].count(), rest.count()), sizes(p.best)) <= 0 {
		return
	}
	for _, c := range p.ordered(cliques, chosen) {
		p.extend(rest&^c, append(chosen, c))
		if p.spent() {
			return
		}
	}
}

// ordered keeps those cliques that start after the last one chosen, when they are of its size:
// sets of equal size are tried in one order only.
func (p *packing) ordered(cliques, chosen []vertices) []vertices {
	if len(chosen) == 0 || !p.found {
		return cliques
	}
	last := chosen[len(chosen)-1]
	if last.count() != cliques[0].count() {
		return cliques
	}
	return slices.DeleteFunc(slices.Clone(cliques), func(c vertices) bool { return c.first() < last.first() })
}

func sizes(sets []vertices) []int {
	out := make([]int, len(sets))
	for i, s := range sets {
		out[i] = s.count()
	}
	return out
}

// bound is the greatest list of sizes that any choice can reach which starts with chosen and
// parts the remaining n vertices into cliques of at most the given size.
func bound(chosen []vertices, size, n int) []int {
	out := sizes(chosen)
	for ; n >= size; n -= size {
		out = append(out, size)
	}
	if n >= 2 {
		out = append(out, n)
	}
	return out
}

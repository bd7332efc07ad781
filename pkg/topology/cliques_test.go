package topology

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func meshOfEdges(n int, edges ...[2]int) mesh {
	m := make(mesh, n)
	for _, e := range edges {
		m.join(e[0], e[1])
	}
	return m
}

// drawMesh draws a mesh of up to n vertices, sparse to dense.
func drawMesh(t *rapid.T, n int) mesh {
	m := make(mesh, rapid.IntRange(0, n).Draw(t, "vertices"))
	density := rapid.IntRange(0, 10).Draw(t, "density")
	for i := range m {
		for j := range i {
			if rapid.IntRange(0, 9).Draw(t, "edge") < density {
				m.join(i, j)
			}
		}
	}
	return m
}

// bruteCliques lists the maximal cliques by trying every subset.
func bruteCliques(m mesh) []vertices {
	var out []vertices
	for set := vertices(1); set <= everything(len(m)) && len(m) > 0; set++ {
		grows := false
		for v := range m {
			grows = grows || !set.has(v) && m.complete(set|1<<v)
		}
		if m.complete(set) && !grows {
			out = append(out, set)
		}
	}
	slices.SortFunc(out, compareCliques)
	return out
}

func TestMaximalCliquesAreAllOfThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMesh(t, 9)
		got := newSearch(m).maximal(everything(len(m)))
		if diff := cmp.Diff(bruteCliques(m), got); diff != "" {
			t.Fatalf("maximal cliques of %b (-brute +got):\n%s", m, diff)
		}
	})
}

// brutePartition returns the greatest list of sizes by trying every way to part the mesh.
func brutePartition(m mesh, rest vertices) []int {
	var best []int
	for set := rest; set != 0; set = (set - 1) & rest {
		if set.has(rest.first()) && m.complete(set) {
			parts := brutePartition(m, rest&^set)
			if set.count() > 1 {
				parts = append(parts, set.count())
			}
			slices.SortFunc(parts, func(a, b int) int { return b - a })
			if slices.Compare(parts, best) > 0 {
				best = parts
			}
		}
	}
	return best
}

func TestPartitionIsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMesh(t, 8)
		got := partition(m)
		var used vertices
		for _, set := range got {
			if !m.complete(set) || used&set != 0 {
				t.Fatalf("parts of %b: %b is not a clique of its own", m, set)
			}
			used |= set
		}
		if diff := cmp.Diff(brutePartition(m, everything(len(m))), sizes(got)); diff != "" && len(got) > 0 {
			t.Fatalf("sizes of the parts of %b (-brute +got):\n%s", m, diff)
		}
	})
}

func TestPartition(t *testing.T) {
	path := func(n int) mesh {
		m := make(mesh, n)
		for i := 1; i < n; i++ {
			m.join(i-1, i)
		}
		return m
	}
	bipartite := make(mesh, 16)
	for i := range 8 {
		for j := range 8 {
			bipartite.join(i, 8+j)
		}
	}
	full := make(mesh, 64)
	for i := range full {
		for j := range i {
			full.join(i, j)
		}
	}
	for name, tc := range map[string]struct {
		mesh mesh
		want []vertices
	}{
		"nothing":                     {nil, nil},
		"no edges":                    {make(mesh, 3), nil},
		"pair and one":                {meshOfEdges(3, [2]int{0, 2}), []vertices{0b101}},
		"path of four wastes nothing": {path(4), []vertices{0b11, 0b1100}},
		"path of five":                {path(5), []vertices{0b11, 0b1100}},
		"triangle before pairs":       {meshOfEdges(4, [2]int{0, 1}, [2]int{1, 2}, [2]int{0, 2}, [2]int{2, 3}), []vertices{0b111}},
		"ring of four":                {meshOfEdges(4, [2]int{0, 1}, [2]int{1, 2}, [2]int{2, 3}, [2]int{0, 3}), []vertices{0b11, 0b1100}},
		"bipartite 8 and 8": {bipartite, []vertices{
			1 | 1<<8, 2 | 2<<8, 4 | 4<<8, 8 | 8<<8, 16 | 16<<8,
			32 | 32<<8, 64 | 64<<8, 128 | 128<<8,
		}},
		"64 all-to-all": {full, []vertices{^vertices(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, partition(tc.mesh)); diff != "" {
				t.Errorf("partition (-want +got):\n%s", diff)
			}
		})
	}
}

// hard is a mesh of 64 vertices with a great many maximal cliques: the complement of 21
// triangles, which has 3^21 of them.
func hard() mesh {
	m := make(mesh, 64)
	for i := range m {
		for j := range i {
			if i/3 != j/3 {
				m.join(i, j)
			}
		}
	}
	return m
}

func TestHardMeshStaysWithinItsBudget(t *testing.T) {
	m := hard()
	s := newSearch(m)
	found := s.maximal(everything(64))
	// The steps may be overdrawn by one descent at most.
	if len(found) == 0 || s.steps < -maxVertices {
		t.Fatalf("%d cliques, %d steps left", len(found), s.steps)
	}
	got := partition(m)
	var used vertices
	for _, set := range got {
		if !m.complete(set) || used&set != 0 {
			t.Fatalf("%b is not a clique of its own", set)
		}
		used |= set
	}
	if diff := cmp.Diff(got, partition(m)); diff != "" {
		t.Errorf("second run differs:\n%s", diff)
	}
	if got[0].count() != 22 {
		t.Errorf("largest part has %d vertices, want 22", got[0].count())
	}
}

// BenchmarkPartitionHard measures the bound: a mesh whose search runs out of steps.
func BenchmarkPartitionHard(b *testing.B) {
	m := hard()
	for b.Loop() {
		partition(m)
	}
}

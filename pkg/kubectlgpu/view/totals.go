package view

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Totals sum up a cluster.
type Totals struct {
	Nodes int `json:"nodes"`
	// GPUs counts physical GPUs, Free those that a claim for a whole one would get.
	GPUs int `json:"gpus"`
	Free int `json:"free"`
	// Shared counts GPUs that are offered in shares: no claim gets one whole.
	Shared int `json:"shared"`
	// Tainted counts GPUs of which a device has a taint that repels claims.
	Tainted int `json:"tainted"`
	// Partitions counts MIG devices that are in use.
	Partitions int `json:"partitionsInUse"`
	// Domains tell how many claims for so many GPUs of one NVLink domain would fit.
	Domains []Fit `json:"nvlinkDomains"`
	// Largest is the free partition with the most memory; nil when there is none.
	Largest *Device `json:"largestFreePartition,omitempty"`
}

// Fit is what is left for claims of one size.
type Fit struct {
	// Size is the number of GPUs.
	Size int `json:"size"`
	// Whole counts domains of exactly this size, all of whose members are free; Claims counts the
	// claims of this size that fit at once, also into larger domains.
	Whole  int `json:"wholeDomains"`
	Claims int `json:"claims"`
}

// domain is one node's part of an NVLink domain.
type domain struct{ node, value string }

// fits counts what is free in domains of these sizes with so many free members.
func fits(n int, size, free map[domain]int) Fit {
	fit := Fit{Size: n}
	for d, members := range size {
		fit.Claims += free[d] / n
		if members == n && free[d] == n {
			fit.Whole++
		}
	}
	return fit
}

// sizes are those that people ask for.
func sizes() []int { return []int{8, 4, 2} }

// Sum makes the totals.
func Sum(gpus []GPU) Totals {
	var t Totals
	nodes := map[string]bool{}
	free, size := map[domain]int{}, map[domain]int{}
	for _, g := range gpus {
		nodes[g.Node] = true
		t.GPUs++
		if g.tainted() {
			t.Tainted++
		}
		if g.shared() {
			t.Shared++
		}
		isFree := g.free()
		if isFree {
			t.Free++
		}
		if g.Domain != "" {
			d := domain{g.Node, g.Domain}
			size[d] = max(size[d], atoi(g.DomainSize))
			if isFree {
				free[d]++
			}
		}
		for _, p := range g.Partitions {
			if p.used() {
				t.Partitions++
			}
			if p.Free && p.Sharing == "" && (t.Largest == nil || p.Memory > t.Largest.Memory) {
				t.Largest = &p
			}
		}
	}
	t.Nodes = len(nodes)
	for _, n := range sizes() {
		t.Domains = append(t.Domains, fits(n, size, free))
	}
	return t
}

func atoi(text string) int {
	n := 0
	if _, err := fmt.Sscan(text, &n); err != nil {
		return 0
	}
	return n
}

func (g GPU) tainted() bool {
	repels := func(d Device) bool { return len(d.source.Repelling()) > 0 }
	return g.Whole != nil && repels(*g.Whole) || slices.ContainsFunc(g.Partitions, repels)
}

// shared tells that the GPU is offered in shares.
func (g GPU) shared() bool { return g.Whole != nil && g.Whole.Sharing != "" }

// free tells that a claim for a whole GPU would get it.
func (g GPU) free() bool { return g.Whole != nil && g.Whole.Free && g.Whole.Sharing == "" }

func (t Totals) write(w *output.Writer) {
	w.Printf("\n%s on %s, %d free", count(t.GPUs, "GPU"), count(t.Nodes, "node"), t.Free)
	if t.Shared > 0 {
		w.Printf(", %d offered in shares", t.Shared)
	}
	if t.Tainted > 0 {
		w.Printf(", %d tainted", t.Tainted)
	}
	if t.Partitions > 0 {
		w.Printf(", %s in use", count(t.Partitions, "partition"))
	}
	w.Printf("\n")
	for _, f := range t.Domains {
		w.Printf("Claims for %d GPUs of one NVLink domain that fit now: %d", f.Size, f.Claims)
		if f.Whole > 0 {
			w.Printf(" (whole domains of %d free: %d)", f.Size, f.Whole)
		}
		w.Printf("\n")
	}
	if t.Largest != nil {
		w.Printf("Largest free partition: %s, %s of memory\n", cmp.Or(t.Largest.Profile, t.Largest.Name), bytes(t.Largest.Memory))
	}
}

// count gives "1 GPU", "2 GPUs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

package walkthrough

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/linkcost"
)

// islands makes GPUs whose domains are given by one letter each, "." for none.
func islands(letters string) []gpu {
	var all []gpu
	for i, letter := range letters {
		g := gpu{number: i, name: fmt.Sprintf("gpu-%d", i), uuid: fmt.Sprintf("GPU-%d", i), pci: fmt.Sprintf("0000:%02x:00.0", i)}
		if letter != '.' {
			g.domain = string(letter)
		}
		all = append(all, g)
	}
	return all
}

func TestLinkCost(t *testing.T) {
	for letters, want := range map[string]int{
		"": 0, "a": 0, "aa": 1, "ab": 4, "..": 4, "a.": 4,
		"aaaa": 6,  // an intact island
		"aabb": 18, // two GPUs of each island
		"aaab": 15,
		"....": 24, "aaaaaaaa": 28,
	} {
		if got := linkCost(islands(letters)); got != want {
			t.Errorf("link cost of %q is %d, want %d", letters, got, want)
		}
	}
}

func TestLinkCostKnowsNoOrderAndHasBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := islands(rapid.StringMatching(`[abc.]{0,10}`).Draw(t, "domains"))
		cost := linkCost(gpus)
		if n := pairs(len(gpus)); cost < n*linkcost.Inside || cost > n*linkcost.Across {
			t.Fatalf("cost %d of %d pairs", cost, n)
		}
		if shuffled := rapid.Permutation(gpus).Draw(t, "order"); linkCost(shuffled) != cost {
			t.Fatalf("cost %d in another order, %d before", linkCost(shuffled), cost)
		}
		one := len(domains(gpus)) == 1 && len(byDomain(gpus, gpus[0].domain)) == len(gpus)
		if cheapest := cost == pairs(len(gpus)); len(gpus) > 1 && cheapest != one {
			t.Fatalf("cheapest is %v, in one domain is %v", cheapest, one)
		}
	})
}

func byDomain(gpus []gpu, domain string) []gpu {
	var all []gpu
	for _, g := range gpus {
		if g.domain == domain && domain != "" {
			all = append(all, g)
		}
	}
	return all
}

func TestPickByNumber(t *testing.T) {
	gpus := islands("aaaabbbb")
	held := map[string]string{"gpu-0": "pair", "gpu-1": "pair"}
	naive := byNumber(gpus, held, 4)
	if got := numbers(naive); got != "#2 #3 #4 #5" || linkCost(naive) != 18 {
		t.Errorf("picked %s at cost %d, want #2 #3 #4 #5 at 18", got, linkCost(naive))
	}
	if got := numbers(byNumber(gpus, held, 99)); got != "#2 #3 #4 #5 #6 #7" {
		t.Errorf("of too few, picked %s", got)
	}
	if got := byNumber(nil, nil, 4); len(got) != 0 {
		t.Errorf("of none, picked %v", got)
	}
}

func TestDomainsInOrder(t *testing.T) {
	if diff := cmp.Diff([]string{"b", "a"}, domains(islands(".bba.ab"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

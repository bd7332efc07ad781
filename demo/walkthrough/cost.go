package walkthrough

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/linkcost"
)

func linkCost(gpus []gpu) int {
	var domains []string
	for _, g := range gpus {
		domains = append(domains, g.domain)
	}
	return linkcost.Sum(domains)
}

// byNumber picks the first n GPUs that nobody holds, as one who does not know the links would;
// fewer where there are not so many.
func byNumber(gpus []gpu, held map[string]string, n int) []gpu {
	var free []gpu
	for _, g := range gpus {
		if _, taken := held[g.name]; !taken {
			free = append(free, g)
		}
	}
	slices.SortFunc(free, func(a, b gpu) int { return a.number - b.number })
	return free[:min(n, len(free))]
}

// domains are the NVLink domains of GPUs, in the order of their first member, without the empty
// one.
func domains(gpus []gpu) []string {
	var all []string
	for _, g := range gpus {
		if g.domain != "" && !slices.Contains(all, g.domain) {
			all = append(all, g.domain)
		}
	}
	return all
}

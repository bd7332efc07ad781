package walkthrough

import "slices"

// What a unit of data costs between two GPUs: inside one NVLink domain, and between GPUs that
// share none and so go over PCIe or between sockets. The ratio is an illustration, not a
// measurement; real ones are larger.
const (
	costInside = 1
	costAcross = 4
)

// linkCost is what it costs when every GPU of a set sends one unit to every other, as in an
// all-to-all or an all-reduce: the sum over all pairs. Two GPUs without a domain share none.
func linkCost(gpus []gpu) int {
	sum := 0
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			if a.domain != "" && a.domain == b.domain {
				sum += costInside
			} else {
				sum += costAcross
			}
		}
	}
	return sum
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

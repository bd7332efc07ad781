package cluster

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/linkcost"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// cost is what it takes when each GPU sends one unit to each other one.
func cost(gpus []rig.GPU) int {
	domains := make([]string, 0, len(gpus))
	for _, g := range gpus {
		domains = append(domains, g.Domain)
	}
	return linkcost.Sum(domains)
}

// firstFree picks n GPUs by their PCI addresses, as who does not know the links would, out of
// those that nobody but the given pod holds.
func firstFree(all []rig.GPU, holders map[string]string, pod string, n int) []rig.GPU {
	free := slices.DeleteFunc(slices.Clone(all), func(g rig.GPU) bool {
		holder := holders[g.UUID]
		return holder != "" && holder != pod
	})
	slices.SortFunc(free, func(a, b rig.GPU) int { return cmp.Compare(a.PCI, b.PCI) })
	return free[:min(n, len(free))]
}

// matrix keeps the heading and the n rows of nvidia-smi topo -m: a legend follows.
func matrix(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(n+1, len(lines))], "")
}

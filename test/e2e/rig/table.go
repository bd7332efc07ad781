package rig

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
)

// Table shows GPUs in columns. holders names who has a GPU, by UUID.
func Table(gpus []GPU, holders map[string]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	// Writing to memory does not fail.
	_, _ = fmt.Fprintln(w, "DEVICE\tPRODUCT\tMEMORY\tNVLINK DOMAIN\tPCIE ROOT\tNUMA\tPOD")
	for _, g := range gpus {
		numa := "-"
		if g.NUMA >= 0 {
			numa = fmt.Sprint(g.NUMA)
		}
		// The first letters tell the domains of a node apart.
		domain := g.Domain[:min(len(g.Domain), 8)]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Device, cmp.Or(g.Product, "-"), g.Memory.String(),
			cmp.Or(domain, "-"), cmp.Or(g.Root, "-"), numa, cmp.Or(holders[g.UUID], "-"))
	}
	_ = w.Flush()
	return b.String()
}

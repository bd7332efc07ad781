package walkthrough

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// listed finds the UUID in a line of nvidia-smi -L.
var listed = regexp.MustCompile(`^GPU \d+: .+ \(UUID: (GPU-[0-9a-f-]+)\)$`)

// uuids reads the output of nvidia-smi -L. A line that is none of a GPU is an error: it is a
// message about something that went wrong.
func uuids(output string) ([]string, error) {
	var all []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n")
		m := listed.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("nvidia-smi -L says %q instead of a GPU", line)
		}
		all = append(all, m[1])
	}
	return all, nil
}

// sameGPUs fails unless seen are exactly the UUIDs of want, in any order.
func sameGPUs(want []gpu, seen []string) error {
	var expected []string
	for _, g := range want {
		expected = append(expected, g.uuid)
	}
	got := slices.Clone(seen)
	slices.Sort(expected)
	slices.Sort(got)
	if !slices.Equal(expected, got) {
		return fmt.Errorf("the container sees the GPUs %q, the claim was given %q", got, expected)
	}
	return nil
}

// matrix keeps the rows of nvidia-smi topo -m: what follows is a legend.
func matrix(output string) string {
	rows, _, _ := strings.Cut(output, "\n\n")
	return rows
}

// allByNVLink fails unless each pair of the n GPUs in nvidia-smi topo -m is joined by NVLink.
func allByNVLink(output string, n int) error {
	rows := 0
	for line := range strings.Lines(matrix(output)) {
		fields := strings.Fields(line)
		// The head of the table names GPUs only; a row names one GPU and then what joins it.
		if len(fields) < n+1 || !strings.HasPrefix(fields[0], "GPU") || strings.HasPrefix(fields[1], "GPU") {
			continue
		}
		for column, cell := range fields[1 : n+1] {
			self := column == rows && cell == "X"
			if !self && !strings.HasPrefix(cell, "NV") {
				return fmt.Errorf("nvidia-smi topo -m joins GPU %d and GPU %d by %s, not by NVLink", rows, column, cell)
			}
		}
		rows++
	}
	if rows != n {
		return fmt.Errorf("nvidia-smi topo -m shows %d GPUs, want %d", rows, n)
	}
	return nil
}

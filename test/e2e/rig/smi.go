package rig

import (
	"fmt"
	"regexp"
	"strings"
)

// listed is a line of nvidia-smi -L.
var listed = regexp.MustCompile(`^GPU \d+: .+ \(UUID: (GPU-[0-9a-f-]+)\)$`)

// ParseList reads the UUIDs from the output of nvidia-smi -L, in its order. A line that names no
// GPU is an error: it is a message about something that went wrong.
func ParseList(output string) ([]string, error) {
	uuids := []string{}
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		m := listed.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("nvidia-smi -L: %q names no GPU", line)
		}
		uuids = append(uuids, m[1])
	}
	return uuids, nil
}

// listedPart is a line of nvidia-smi -L below the one of a partition's GPU.
var listedPart = regexp.MustCompile(`^MIG (\S+) +Device +\d+: \(UUID: (MIG-[0-9a-f-]+)\)$`)

// Part is a partition as nvidia-smi lists it.
type Part struct{ GPU, Profile, UUID string }

// ParseParts reads the partitions from the output of nvidia-smi -L, in its order. A line that
// names neither a GPU nor a partition is an error.
func ParseParts(output string) ([]Part, error) {
	parts := []Part{}
	gpu := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if m := listed.FindStringSubmatch(line); m != nil {
			gpu = m[1]
			continue
		}
		m := listedPart.FindStringSubmatch(line)
		if line != "" && (m == nil || gpu == "") {
			return nil, fmt.Errorf("nvidia-smi -L: %q names neither a GPU nor a partition of one", line)
		}
		if m != nil {
			parts = append(parts, Part{GPU: gpu, Profile: m[1], UUID: m[2]})
		}
	}
	return parts, nil
}

// Links tells how two GPUs are joined: Links[i][j] is a word such as "NV4" or "SYS", "X" for a
// GPU with itself.
type Links [][]string

// ParseTopology reads the matrix of nvidia-smi topo -m.
func ParseTopology(output string) (Links, error) {
	head, rest, ok := strings.Cut(strings.TrimLeft(output, "\n"), "\n")
	n := strings.Count(head, "GPU") - strings.Count(head, "GPU NUMA ID")
	if !ok || n == 0 {
		return nil, fmt.Errorf("nvidia-smi topo -m: no heading with GPUs in %q", head)
	}
	links := make(Links, 0, n)
	for line := range strings.Lines(rest) {
		fields := strings.Fields(line)
		if len(links) == n {
			break
		}
		if len(fields) <= n || fields[0] != fmt.Sprintf("GPU%d", len(links)) {
			return nil, fmt.Errorf("nvidia-smi topo -m: %q is not the row of GPU%d of %d", strings.TrimSpace(line), len(links), n)
		}
		links = append(links, fields[1:n+1])
	}
	if len(links) != n {
		return nil, fmt.Errorf("nvidia-smi topo -m: %d rows for %d GPUs", len(links), n)
	}
	return links, nil
}

// OverNVLink says which pair is not joined by NVLink; "" means that all are.
func (l Links) OverNVLink() string {
	for i, row := range l {
		for j, word := range row {
			if i != j && !strings.HasPrefix(word, "NV") {
				return fmt.Sprintf("GPU%d and GPU%d are joined by %s, not by NVLink", i, j, word)
			}
		}
	}
	return ""
}

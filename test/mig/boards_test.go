package mig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Boards with other geometries than eight memory slices: four of the smallest profile fill a GPU,
// half a GPU is on the next one, with device nodes of its own, and all goes again.
func TestOtherBoards(t *testing.T) {
	for preset, c := range map[string]struct {
		small, half   string
		four          []string
		halfAt        string
		mode          bool
		switchesModes bool
	}{
		"a30-4": {
			small: "1g.6gb", half: "2g.12gb", four: []string{"1g.6gb:0", "1g.6gb:1", "1g.6gb:2", "1g.6gb:3"}, halfAt: "2g.12gb:2", mode: true,
		},
		"rtx-pro-6000-8": {
			small: "1g.24gb", half: "2g.48gb", four: []string{"1g.24gb:0", "1g.24gb:3", "1g.24gb:6", "1g.24gb:9"}, halfAt: "2g.48gb:6", switchesModes: true,
		},
	} {
		t.Run(preset, func(t *testing.T) {
			b := newBed(t, preset, gpusim.WithFile(func(f *nodefile.File) { f.MIG = &nodefile.MIG{Enabled: c.mode} }))
			b.start()
			four, _ := b.wants("four", c.small, 4)
			half, devices := b.wants("half", c.half, 1)
			b.prepare(four)
			answer := b.prepare(half)
			if diff := cmp.Diff(c.four, b.partitions(0)); diff != "" {
				t.Errorf("partitions of the first GPU (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{c.halfAt}, b.partitions(1)); diff != "" {
				t.Errorf("partitions of the second GPU (-want +got):\n%s", diff)
			}
			if nodes := b.nodes(four); len(nodes) != 4 {
				t.Errorf("nodes %v", nodes)
			}
			// The GPU's node and the two capabilities of the partition.
			if nodes := b.nodes(half)[devices[0]]; len(nodes) != 3 || len(answer) != 1 {
				t.Errorf("%d answers, nodes %v", len(answer), nodes)
			}
			if c.switchesModes {
				whole := b.Allocated("whole", []int{2})
				b.prepare(whole)
				b.unprepare(whole)
			}
			b.unprepare(half)
			b.unprepare(four)
			for i := range b.Node.GPUCount() {
				if found := b.partitions(i); len(found) > 0 || b.mode(i) != c.mode {
					t.Errorf("GPU %d has partitions %v, mode on %t", i, found, b.mode(i))
				}
			}
		})
	}
}

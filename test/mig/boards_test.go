package mig_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

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

// newBoard is what no board is today: a profile whose number and name are of a driver to come.
const newBoard = `{"extends": "h100-sxm5-80gb", "mig": {"needsReset": false, "units": 8, "maxInstances": 7, "profiles": [
	{"name": "1g.10gb", "enum": 0, "id": 19, "slices": 1, "max": 7, "memoryMiB": 9984, "sm": 16, "ce": 1, "dec": 1, "jpg": 1, "ofa": 0, "size": 1, "starts": [0, 1, 2, 3, 4, 5, 6]},
	{"name": "2g.30gb+Future_1", "enum": 18, "id": 300, "slices": 2, "max": 2, "memoryMiB": 29984, "sm": 32, "ce": 2, "dec": 2, "jpg": 2, "ofa": 0, "size": 3, "starts": [0, 4]},
	{"name": "7g.80gb", "enum": 4, "id": 0, "slices": 7, "max": 1, "memoryMiB": 81152, "sm": 132, "ce": 8, "dec": 7, "jpg": 7, "ofa": 1, "size": 8, "starts": [0]}]}}`

// Whatever profile NVML reports is offered under its own name, made and removed.
func TestProfileThatNobodyKnows(t *testing.T) {
	b := newBed(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		f.Boards, f.Board = map[string]json.RawMessage{"new": json.RawMessage(newBoard)}, "new"
	}))
	b.start()
	const label = "2g-30gb-with-future-1-4"
	if names := b.names(0); !slices.Contains(names, label) || len(names) != 7+2+1+1 {
		t.Errorf("devices %q", names)
	}
	claim, devices := b.wants("one", "2g.30gb+Future_1", 1)
	if want := b.Device(0) + "-mig-" + label; len(devices) != 1 || devices[0] != want || len(validation.IsDNS1123Label(want)) > 0 {
		t.Errorf("allocated are %q, want %s", devices, want)
	}
	b.prepare(claim)
	if diff := cmp.Diff([]string{"2g.30gb+Future_1:4"}, b.partitions(0)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	b.unprepare(claim)
	b.untouched()
}

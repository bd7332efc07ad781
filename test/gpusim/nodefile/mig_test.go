package nodefile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

func TestPartitionsOfGPUs(t *testing.T) {
	t.Parallel()
	text := minimal + `
mig: {enabled: true, instances: [{profile: 1g.10gb, start: 6}]}
boards:
  plain: {extends: l40s-48gb}
`
	text = strings.Replace(text, "numa: 0, cpus", "mig: {enabled: false}, numa: 0, cpus", 1)
	text = strings.Replace(text, "nvlink:", "- {board: plain, pci: \"0000:f0:00.0\", root: pci0000:f0}\nnvlink:", 1)
	node := resolve(t, text)
	six := uint32(6)
	want := []nodefile.MIG{
		{}, // Its own, in PCI order the first.
		{Enabled: true, Instances: []nodefile.MIGInstance{{Profile: "1g.10gb", Start: &six}}},
		{}, // A board without MIG takes none from the node.
	}
	for i := range want {
		if diff := cmp.Diff(want[i], node.GPUs[i].MIG); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestPartitionErrorsNameTheField(t *testing.T) {
	t.Parallel()
	const board = "\nboards:\n  odd: {extends: h100-sxm5-80gb, mig: {needsReset: false, units: UNITS, maxInstances: 7, profiles: [{name: NAME, enum: 0, id: 1, slices: SLICES, max: MAX, memoryMiB: 1, sm: 1, ce: 1, dec: 0, jpg: 0, ofa: 0, size: SIZE, starts: [START]}]}}\n"
	odd := func(changes ...string) string {
		out := strings.NewReplacer(changes...).Replace(board)
		return strings.NewReplacer("UNITS", "8", "NAME", "1g", "SLICES", "1", "MAX", "1", "SIZE", "1", "START", "0").Replace(out)
	}
	tests := map[string]struct{ more, want string }{
		"instances while off": {"\nmig: {enabled: false, instances: [{profile: 1g.10gb}]}\n", "mig.enabled: Invalid value: false"},
		"unknown profile":     {"\nmig: {enabled: true, instances: [{profile: 1g.5gb}]}\n", "mig.instances[0].profile: Invalid value: \"1g.5gb\": must be a profile of the board: 1g.10gb, 1g.10gb+me"},
		"wrong start":         {"\nmig: {enabled: true, instances: [{profile: 3g.40gb, start: 2}]}\n", "mig.instances[0].start: Invalid value: 2: must be one of [0 4]"},
		"unknown field":       {"\nmig: {enabled: true, layout: x}\n", "unknown field"},
		"long name":           {odd("NAME", strings.Repeat("g", 44)), "must have 1 to 43 characters"},
		"no slices":           {odd("SLICES", "0"), "profiles[0].slices: Invalid value: 0"},
		"no instance":         {odd("MAX", "0"), "max at least 1"},
		"no size":             {odd("SIZE", "0"), "profiles[0].starts"},
		"too large":           {odd("SIZE", "9"), "up to the board's units"},
		"beyond the end":      {odd("START", "8"), "must end within the board's units"},
		"id out of range":     {odd("UNITS", "16"), "gives a GPU instance id above 14"},
		"good":                {odd(), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := minimal + test.more
			if strings.Contains(test.more, "boards:") {
				text = strings.Replace(text, "board: h100-sxm5-80gb", "board: odd", 1)
			}
			_, err := nodefile.Decode([]byte(text))
			if test.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestPartitionOfABoardWithoutMIG(t *testing.T) {
	t.Parallel()
	text := strings.Replace(minimal, "numa: 1}", "numa: 1, board: t4-16gb, mig: {enabled: true}}", 1)
	if _, err := nodefile.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), "gpus[0].mig: Invalid value: \"Tesla T4\": this GPU's board has no MIG") {
		t.Errorf("error %v", err)
	}
}

// Facts that hold on every board, whatever its data says.
func TestProfilesOfBoards(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, name := range nodefile.Presets() {
		file, err := nodefile.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		node, err := nodefile.Resolve(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range node.GPUs {
			if mig := node.GPUs[i].Board.MIG; mig != nil {
				seen++
				checkProfiles(t, &node.GPUs[i].Board, mig)
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d boards with MIG in the presets", seen)
	}
}

func checkProfiles(t *testing.T, board *nodefile.Board, mig *nodefile.BoardMIG) {
	t.Helper()
	enums, ids, names := map[uint32]bool{}, map[uint32]bool{}, map[string]bool{}
	largest := uint64(0)
	for _, p := range mig.Profiles {
		if enums[p.Enum] || ids[p.ID] || names[p.Name] || p.Enum >= 18 {
			t.Errorf("%s: %s repeats a number, an id or a name", board.Product, p.Name)
		}
		enums[p.Enum], ids[p.ID], names[p.Name] = true, true, true
		if p.GFX != strings.HasSuffix(p.Name, "+gfx") {
			t.Errorf("%s: %s and graphics disagree", board.Product, p.Name)
		}
		if strings.HasSuffix(p.Name, "-me") && p.DEC+p.ENC+p.JPG+p.OFA > 0 {
			t.Errorf("%s: %s has media engines", board.Product, p.Name)
		}
		// More instances than places cannot be; memory grows with the units.
		if int(p.Max) > len(p.Starts) || p.MemoryMiB > board.MemoryMiB*uint64(p.Size)/uint64(mig.Units) || p.MemoryMiB*10 < board.MemoryMiB*9*uint64(p.Size)/uint64(mig.Units) {
			t.Errorf("%s: %s has %d MiB, %d instances and %d places", board.Product, p.Name, p.MemoryMiB, p.Max, len(p.Starts))
		}
		largest = max(largest, uint64(p.Size))
	}
	if largest != uint64(mig.Units) {
		t.Errorf("%s: no profile takes the whole board", board.Product)
	}
}

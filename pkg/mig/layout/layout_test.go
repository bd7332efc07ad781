package layout_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
)

const mixed = `
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}
  all-1g.10gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      "1g.10gb": 7
  custom:
  - devices: [0, 2]
    mig-enabled: true
    mig-devices: {"4g.40gb": 1, "1g.10gb": 2, "7g.80gb": 0}
  - devices: [1]
    mig-enabled: false
  by-board:
  # A filter is one text or a list; case does not matter.
  - device-filter: ["0x233010DE", "0x20b210de"]
    devices: all
    mig-enabled: true
    mig-devices: {"2g.20gb": 3}
  - device-filter: "0x20B710DE"
    devices: all
    mig-enabled: true
    mig-devices: {"2g.12gb": 2}
  twice:
  - {devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}
  - {devices: [1], mig-enabled: true, mig-devices: {"2g.20gb": 3}}
  - {devices: [2], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
`

func parse(t testing.TB, text string) layout.File {
	t.Helper()
	f, err := layout.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// selected gives the layouts of a node as texts, by the number of the GPU.
func selected(t testing.TB, f layout.File, config string, s inventory.Snapshot) []string {
	t.Helper()
	layouts, err := f.Select(config, s)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, g := range s.GPUs {
		l, ok := layouts[g.PCI]
		switch {
		case !ok:
			out = append(out, "-")
		case l.Refused != nil:
			out = append(out, "refused")
		default:
			out = append(out, l.String())
		}
	}
	return out
}

func TestSelect(t *testing.T) {
	f := parse(t, mixed)
	node := func(preset string, count int) inventory.Snapshot {
		s := migtest.Snapshot(t, preset)
		s.GPUs = s.GPUs[:count]
		return s
	}
	lost := node("hgx-h100-8", 4)
	lost.Unusable = []inventory.Unusable{{PCI: lost.GPUs[0].PCI, Reason: "lost"}}
	lost.GPUs = lost.GPUs[1:]
	seven, whole := "7 x 1g.10gb", "MIG mode off"
	for name, c := range map[string]struct {
		config   string
		snapshot inventory.Snapshot
		want     []string
	}{
		"all":                    {"all-1g.10gb", node("hgx-h100-8", 2), []string{seven, seven}},
		"off":                    {"all-disabled", node("hgx-h100-8", 2), []string{whole, whole}},
		"on without instances":   {"all-enabled", node("hgx-h100-8", 1), []string{"no instances"}},
		"by number":              {"custom", node("hgx-h100-8", 4), []string{"2 x 1g.10gb, 1 x 4g.40gb", whole, "2 x 1g.10gb, 1 x 4g.40gb", "-"}},
		"a lost GPU counts":      {"custom", lost, []string{whole, "2 x 1g.10gb, 1 x 4g.40gb", "-"}},
		"by board":               {"by-board", node("hgx-h100-8", 1), []string{"3 x 2g.20gb"}},
		"by board, another":      {"by-board", node("a30-4", 1), []string{"2 x 2g.12gb"}},
		"by board, none":         {"by-board", node("hgx-b200-8", 1), []string{"-"}},
		"two entries disagree":   {"twice", node("hgx-h100-8", 3), []string{seven, "refused", seven}},
		"boards without MIG":     {"all-1g.10gb", noMIG(node("hgx-h100-8", 2)), []string{"-", seven}},
		"such a board by number": {"custom", noMIG(node("hgx-h100-8", 2)), []string{"2 x 1g.10gb, 1 x 4g.40gb", whole}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, selected(t, f, c.config, c.snapshot)); diff != "" {
				t.Errorf("layouts (-want +got):\n%s", diff)
			}
		})
	}
	unknown := new(layout.UnknownConfigError)
	if _, err := f.Select("all-1g.11gb", lost); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "all-1g.10gb, all-disabled") {
		t.Errorf("error %v", err)
	}
}

// noMIG takes partitions from the first GPU.
func noMIG(s inventory.Snapshot) inventory.Snapshot {
	s.GPUs[0].MIG = inventory.MIG{}
	return s
}

// The file that NVIDIA's tool comes with is of the same form; this one has its shapes.
func TestParseRefuses(t *testing.T) {
	entry := func(text string) string { return "version: v1\nmig-configs: {x: [" + text + "]}" }
	for name, c := range map[string]struct{ text, want string }{
		"nothing":           {"", `version ""`},
		"version":           {"version: v2\nmig-configs: {x: []}", `version "v2" is not known, want "v1"`},
		"no configuration":  {"version: v1", "has no configuration"},
		"no entry":          {"version: v1\nmig-configs: {x: []}", `mig-configs["x"]: it has no entry`},
		"long name":         {"version: v1\nmig-configs: {" + strings.Repeat("x", 64) + ": [{devices: all, mig-enabled: false}]}", "want 1 to 63"},
		"unknown field":     {entry("{devices: all, mig-enabled: false, mig: 1}"), `unknown field`},
		"twice":             {"version: v1\nmig-configs: {x: [], x: []}", "already"},
		"no devices":        {entry("{mig-enabled: false}"), "entry 0: devices is missing"},
		"no mode":           {entry("{devices: all}"), "mig-enabled is missing"},
		"no profiles":       {entry("{devices: all, mig-enabled: true}"), "mig-devices is missing"},
		"profiles and off":  {entry(`{devices: all, mig-enabled: false, mig-devices: {"1g.5gb": 1}}`), "although mig-enabled is false"},
		"some":              {entry("{devices: some, mig-enabled: false}"), `want "all" or a list`},
		"negative":          {entry("{devices: [-1], mig-enabled: false}"), "-1 is no number of a GPU"},
		"null":              {entry("{devices: null, mig-enabled: false}"), "devices is missing"},
		"filter":            {entry("{devices: all, device-filter: H100, mig-enabled: false}"), `"H100" is not of the form`},
		"filter number":     {entry("{devices: all, device-filter: 7, mig-enabled: false}"), "want a text or a list"},
		"count":             {entry(`{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": -1}}`), `-1 of "1g.5gb"`},
		"compute instances": {entry(`{devices: all, mig-enabled: true, mig-devices: {"1c.2g.10gb": 1}}`), "into compute instances"},
		"second entry":      {entry("{devices: all, mig-enabled: false}, {devices: all}"), "entry 1: mig-enabled"},
		"too large":         {strings.Repeat("#", 1<<20) + "\n" + mixed, "at most 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := layout.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

// of is the layout of a GPU that is written as "1g.10gb=2 4g.40gb=1"; "off" is the mode off.
func of(text string) layout.Layout {
	l := layout.Layout{Config: "test", Enabled: text != "off", Profiles: map[string]int{}}
	for _, part := range strings.Fields(text) {
		name, count, found := strings.Cut(part, "=")
		if found {
			n := 0
			_, _ = fmt.Sscan(count, &n)
			l.Profiles[name] = n
		}
	}
	return l
}

// gpu is one of a preset after changes.
func gpu(t testing.TB, preset string, changes ...func(inventory.GPU) inventory.GPU) inventory.GPU {
	t.Helper()
	g := migtest.Snapshot(t, preset).GPUs[0]
	for _, change := range changes {
		g = change(g)
	}
	return g
}

func on(g inventory.GPU) inventory.GPU {
	g.MIG.Enabled, g.MIG.PendingEnabled = true, true
	return g
}

// Who made an instance.
const (
	others   = "others"
	declared = "declared"
	claims   = "claims"
	// half is declared and without its compute instance.
	half = "half"
)

// with adds instances, "1g.10gb:6".
func with(t testing.TB, by string, names ...string) func(inventory.GPU) inventory.GPU {
	return func(g inventory.GPU) inventory.GPU {
		for _, name := range names {
			g = migtest.With(t, g, by == claims, name)
			_, start, _ := strings.Cut(name, ":")
			for i := range g.MIG.Instances {
				if fmt.Sprint(g.MIG.Instances[i].Placement.Start) != start {
					continue
				}
				g.MIG.Instances[i].Declared = by == declared || by == half
				if by == half {
					g.MIG.Instances[i].Compute = nil
				}
			}
		}
		return g
	}
}

// told writes a plan: "-" before what is removed, "+" before what is made.
func told(g inventory.GPU, p layout.Plan) []string {
	var out []string
	geometry, _ := mig.NewGeometry(g)
	for _, i := range p.Remove {
		part := geometry.PartitionOf(i)
		out = append(out, fmt.Sprintf("-%s:%d", part.Profile.Name, part.Placement.Start))
	}
	if p.Switch {
		out = append(out, fmt.Sprintf("mode %t", p.Mode))
	}
	for _, part := range p.Make {
		out = append(out, fmt.Sprintf("+%s:%d", part.Profile.Name, part.Placement.Start))
	}
	return out
}

func TestPlan(t *testing.T) {
	const h100, a100, rtx = "hgx-h100-8", "dgx-a100-80", "rtx-pro-6000-8"
	seven := []string{"1g.10gb:6", "1g.10gb:5", "1g.10gb:4", "1g.10gb:3", "1g.10gb:2", "1g.10gb:1", "1g.10gb:0"}
	for name, c := range map[string]struct {
		gpu    inventory.GPU
		layout string
		want   []string
		// disturbs tells that the GPU must be idle.
		disturbs bool
	}{
		"seven, from off":                    {gpu(t, h100), "1g.10gb=7", append([]string{"mode true"}, plus(seven)...), true},
		"seven, from on":                     {gpu(t, h100, on), "1g.10gb=7", plus(seven), false},
		"seven, there":                       {gpu(t, h100, with(t, declared, seven...)), "1g.10gb=7", nil, false},
		"seven of others":                    {gpu(t, h100, with(t, others, seven...)), "1g.10gb=7", nil, false},
		"one is missing":                     {gpu(t, h100, with(t, declared, seven[1:]...)), "1g.10gb=7", []string{"+1g.10gb:6"}, false},
		"beside others":                      {gpu(t, h100, with(t, others, "3g.40gb:0")), "3g.40gb=1 1g.10gb=1", []string{"+1g.10gb:6"}, false},
		"large ones first, room for 1g.20gb": {gpu(t, h100, on), "1g.10gb=2 4g.40gb=1", []string{"+4g.40gb:0", "+1g.10gb:5", "+1g.10gb:4"}, false},
		"room for the largest":               {gpu(t, h100, on), "3g.40gb=1", []string{"+3g.40gb:4"}, false},
		"one small one":                      {gpu(t, h100, on), "1g.10gb=1", []string{"+1g.10gb:6"}, false},
		"three of two":                       {gpu(t, h100, on), "2g.20gb=3", []string{"+2g.20gb:4", "+2g.20gb:2", "+2g.20gb:0"}, false},
		"another one":                        {gpu(t, h100, with(t, declared, "3g.40gb:0", "3g.40gb:4")), "1g.10gb=1 3g.40gb=1", []string{"-3g.40gb:0", "+1g.10gb:3"}, true},
		"kept in the way, one stays": {
			gpu(t, h100, with(t, declared, "1g.10gb:2", "1g.10gb:5")), "1g.10gb=2 4g.40gb=1",
			[]string{"-1g.10gb:2", "+4g.40gb:0", "+1g.10gb:4"},
			true,
		},
		"half made":           {gpu(t, h100, with(t, half, "1g.10gb:6")), "1g.10gb=1", []string{"+1g.10gb:6"}, false},
		"half made elsewhere": {gpu(t, h100, with(t, half, "1g.10gb:6")), "7g.80gb=1", []string{"-1g.10gb:6", "+7g.80gb:0"}, true},
		"left by a claim":     {gpu(t, h100, with(t, claims, "1g.10gb:6")), "1g.10gb=1", []string{"-1g.10gb:6", "+1g.10gb:6"}, true},
		"none":                {gpu(t, h100, with(t, declared, "1g.10gb:6")), "", []string{"-1g.10gb:6"}, true},
		"off":                 {gpu(t, h100, with(t, declared, "1g.10gb:6")), "off", []string{"-1g.10gb:6", "mode false"}, true},
		"off already":         {gpu(t, h100), "off", nil, false},
		"off, never on":       {gpu(t, a100), "off", nil, false},
		"Ampere":              {gpu(t, a100, on), "1g.10gb=1", []string{"+1g.10gb:6"}, false},
		"one media instance":  {gpu(t, h100, on), "1g.10gb+me=1 1g.10gb=6", append([]string{"+1g.10gb:6"}, plus(append(seven[1:6:6], "1g.10gb+me:0"))...), false},
		"graphics":            {gpu(t, rtx, on), "1g.24gb+gfx=4", plus([]string{"1g.24gb+gfx:9", "1g.24gb+gfx:6", "1g.24gb+gfx:3", "1g.24gb+gfx:0"}), false},
		"all media": {
			gpu(t, rtx, on), "1g.24gb+me.all=1 1g.24gb-me=3",
			plus([]string{"1g.24gb+me.all:9", "1g.24gb-me:6", "1g.24gb-me:3", "1g.24gb-me:0"}), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := of(c.layout).Plan(c.gpu)
			if err != nil {
				t.Fatal(err)
			}
			got := told(c.gpu, p)
			if diff := cmp.Diff(slices.Sorted(slices.Values(c.want)), slices.Sorted(slices.Values(got))); diff != "" {
				t.Errorf("plan %v (-want +got):\n%s", got, diff)
			}
			if p.Disturbs() != c.disturbs || p.Done() != (len(c.want) == 0) {
				t.Errorf("disturbs %t, done %t", p.Disturbs(), p.Done())
			}
		})
	}
}

func plus(names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, "+"+n)
	}
	return out
}

// What does not fit is refused with the configuration, the GPU, the profile and what would fit.
func TestPlanRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		gpu    inventory.GPU
		layout string
		want   []string
	}{
		"profile":        {gpu(t, "hgx-h100-8"), "1g.5gb=7", []string{`layout "test"`, "no profile 1g.5gb", "7 x 1g.10gb, 1 x 1g.10gb+me", "H100"}},
		"count":          {gpu(t, "hgx-h100-8"), "1g.10gb=8", []string{"no room for 8 x 1g.10gb", "7 x 1g.10gb fit"}},
		"together":       {gpu(t, "hgx-h100-8"), "4g.40gb=1 2g.20gb=2", []string{"1 x 2g.20gb fit beside the larger ones"}},
		"media":          {gpu(t, "hgx-h100-8"), "1g.10gb+me=2", []string{"1 x 1g.10gb+me fit"}},
		"reset":          {gpu(t, "dgx-a100-80"), "1g.10gb=7", []string{"switched on with a reset", "nvidia-smi -i", "-mig 1"}},
		"reset for off":  {gpu(t, "dgx-a100-80", on), "off", []string{"switched off with a reset", "-mig 0"}},
		"others":         {gpu(t, "hgx-h100-8", with(t, others, "3g.40gb:0")), "1g.10gb=7", []string{"what another tool made", "at 0:4", "remove it"}},
		"others' place":  {gpu(t, "hgx-h100-8", with(t, others, "1g.10gb:0")), "4g.40gb=1 1g.10gb=1", []string{"what another tool made", "at 0:1"}},
		"others and off": {gpu(t, "hgx-h100-8", with(t, others, "3g.40gb:0")), "off", []string{"what another tool made"}},
		"no MIG":         {inventory.GPU{ProductName: "T4"}, "1g.10gb=1", []string{"T4", "cannot be partitioned"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := of(c.layout).Plan(c.gpu)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
	refused := layout.Layout{Refused: os.ErrInvalid}
	if _, err := refused.Plan(gpu(t, "hgx-h100-8")); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

func TestUndo(t *testing.T) {
	ours := func(g inventory.GPU) inventory.GPU { g.MIG.Declared = true; return g }
	for name, c := range map[string]struct {
		gpu  inventory.GPU
		want []string
	}{
		"nothing":            {gpu(t, "hgx-h100-8"), nil},
		"all of it":          {gpu(t, "hgx-h100-8", with(t, declared, "1g.10gb:6", "1g.10gb:5"), ours), []string{"-1g.10gb:5", "-1g.10gb:6", "mode false"}},
		"the mode is theirs": {gpu(t, "hgx-h100-8", with(t, declared, "1g.10gb:6")), []string{"-1g.10gb:6"}},
		"others are there":   {gpu(t, "hgx-h100-8", with(t, declared, "1g.10gb:6"), with(t, others, "1g.10gb:0"), ours), []string{"-1g.10gb:6"}},
		"a claim is there":   {gpu(t, "hgx-h100-8", with(t, claims, "1g.10gb:0"), ours), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, told(c.gpu, layout.Undo(c.gpu))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// carriedOut is the GPU after a plan.
func carriedOut(t *rapid.T, g inventory.GPU, p layout.Plan) inventory.GPU {
	g.MIG.Instances = slices.Clone(g.MIG.Instances)
	for _, gone := range p.Remove {
		g.MIG.Instances = slices.DeleteFunc(g.MIG.Instances, func(i inventory.MIGInstance) bool { return i.Placement == gone.Placement })
	}
	if p.Switch {
		g.MIG.Enabled, g.MIG.PendingEnabled = p.Mode, p.Mode
	}
	for _, part := range p.Make {
		for _, i := range g.MIG.Instances {
			if i.Placement.Overlaps(part.Placement) {
				t.Fatalf("%s is made where an instance is at %s", part.Key(), i.Placement)
			}
		}
		g.MIG.Instances = append(g.MIG.Instances, inventory.MIGInstance{
			ProfileID: part.Profile.ID, Placement: part.Placement, Declared: true,
			Compute: []inventory.MIGCompute{{Slices: part.Profile.Slices, UUID: "MIG-" + part.Key()}},
		})
	}
	return g
}

// A plan that is carried out leaves nothing to do, takes nothing from others, is the same every
// time, and what can be placed at all is placed: the profiles are those of some arrangement.
func TestPlansEnd(t *testing.T) {
	boards := map[string]inventory.GPU{}
	for _, preset := range migtest.Presets() {
		s := migtest.Snapshot(t, preset)
		for _, g := range s.GPUs {
			if _, ok := mig.NewGeometry(g); ok {
				boards[preset] = on(g)
				break
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		g := boards[rapid.SampledFrom(migtest.Presets()).Draw(t, "preset")]
		geometry, _ := mig.NewGeometry(g)
		arrangement := func(label string, beside []mig.Partition) []mig.Partition {
			var out []mig.Partition
			for _, part := range rapid.Permutation(geometry.Partitions(nil)).Draw(t, label) {
				if geometry.Fits(part, append(slices.Clone(beside), out...)) {
					out = append(out, part)
				}
			}
			return out[:rapid.IntRange(0, len(out)).Draw(t, label+" count")]
		}
		was := arrangement("was", nil)
		for _, part := range was {
			g.MIG.Instances = append(g.MIG.Instances, inventory.MIGInstance{
				ProfileID: part.Profile.ID, Placement: part.Placement, Declared: rapid.Bool().Draw(t, "declared"),
				Compute: []inventory.MIGCompute{{Slices: part.Profile.Slices}},
			})
		}
		l := layout.Layout{Config: "x", Enabled: true, Profiles: map[string]int{}}
		for _, part := range arrangement("wanted", nil) {
			l.Profiles[part.Profile.Name]++
		}
		p, err := l.Plan(g)
		foreign := new(layout.ForeignError)
		if err != nil {
			if !errors.As(err, &foreign) {
				t.Fatalf("%s does not fit: %v", l, err)
			}
			return
		}
		again, _ := l.Plan(g)
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("another plan the second time:\n%s", diff)
		}
		for _, gone := range p.Remove {
			if !gone.Declared {
				t.Fatalf("what others made at %s is removed", gone.Placement)
			}
		}
		after := carriedOut(t, g, p)
		if rest, err := l.Plan(after); err != nil || !rest.Done() {
			t.Fatalf("after the plan %v, %v is left", told(g, p), told(after, rest))
		}
		if have := layout.Of(after); have.String() != l.String() {
			t.Fatalf("made %s, want %s", have, l)
		}
	})
}

// Of all ways to place the instances, one with room for the largest possible is taken: compared
// with trying everything.
func TestNoFragments(t *testing.T) {
	g := on(migtest.Snapshot(t, "hgx-h100-8").GPUs[0])
	geometry, _ := mig.NewGeometry(g)
	largest := func(placed []mig.Partition) int {
		best := 0
		for _, part := range geometry.Partitions(nil) {
			if geometry.Fits(part, placed) {
				best = max(best, part.Profile.Slices)
			}
		}
		return best
	}
	names := []string{"1g.10gb", "2g.20gb", "3g.40gb"}
	checked := 0
	for a := range names {
		for b := range a + 1 {
			for c := range b + 1 {
				wanted := []string{names[a], names[b], names[c]}
				best := -1
				for _, x := range geometry.Partitions(nil) {
					for _, y := range geometry.Partitions(nil) {
						for _, z := range geometry.Partitions(nil) {
							if x.Profile.Name != wanted[0] || y.Profile.Name != wanted[1] || z.Profile.Name != wanted[2] {
								continue
							}
							if geometry.Fits(y, []mig.Partition{x}) && geometry.Fits(z, []mig.Partition{x, y}) {
								best = max(best, largest([]mig.Partition{x, y, z}))
							}
						}
					}
				}
				l := layout.Layout{Enabled: true, Profiles: map[string]int{}}
				for _, name := range wanted {
					l.Profiles[name]++
				}
				p, err := l.Plan(g)
				if (err == nil) != (best >= 0) {
					t.Errorf("%s: %v, but the best has %d", l, err, best)
				}
				if err == nil {
					checked++
					if got := largest(p.Make); got != best {
						t.Errorf("%s: room for %d slices, possible are %d: %v", l, got, best, told(g, p))
					}
				}
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d layouts fit", checked)
	}
}

func TestCompareAndExport(t *testing.T) {
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:4]
	s.GPUs[0] = with(t, declared, "4g.40gb:0", "1g.10gb:6", "1g.10gb:5")(s.GPUs[0])
	s.GPUs[1] = with(t, others, "4g.40gb:0", "1g.10gb:4", "1g.10gb:5")(s.GPUs[1])
	s.GPUs[2] = on(s.GPUs[2])
	text, err := layout.Export("now", s)
	if err != nil {
		t.Fatal(err)
	}
	want := `mig-configs:
  now:
  - devices:
    - 0
    - 1
    mig-devices:
      1g.10gb: 2
      4g.40gb: 1
    mig-enabled: true
  - devices:
    - 2
    mig-devices: {}
    mig-enabled: true
  - devices:
    - 3
    mig-enabled: false
version: v1
`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	now, err := parse(t, string(text)).Select("now", s)
	if err != nil {
		t.Fatal(err)
	}
	if differences := now.Compare(s); len(differences) > 0 {
		t.Errorf("differs from its own export: %v", differences)
	}
	other, err := parse(t, mixed).Select("custom", s)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range other.Compare(s) {
		got = append(got, d.String())
	}
	if len(got) != 2 || !strings.Contains(got[0], s.GPUs[1].PCI.String()+": want MIG mode off, have 2 x 1g.10gb, 1 x 4g.40gb (MIG layout") ||
		!strings.HasSuffix(got[1], s.GPUs[2].PCI.String()+": want 2 x 1g.10gb, 1 x 4g.40gb, have no instances") {
		t.Errorf("differences %q", got)
	}
	s.GPUs[2] = with(t, half, "1g.10gb:6")(s.GPUs[2])
	if _, err := layout.Export("now", s); err == nil {
		t.Error("an instance without a compute instance is exported")
	}
	if _, err := layout.Export("now", noMIG(inventory.Snapshot{GPUs: []inventory.GPU{{PCI: pci.Address{Bus: 1}}}})); err == nil {
		t.Error("a node without partitions is exported")
	}
	all, err := layout.Export("all", migtest.Snapshot(t, "hgx-h100-8"))
	if err != nil || !strings.Contains(string(all), "devices: all\n    mig-enabled: false") {
		t.Errorf("%s, %v", all, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(mixed))
	f.Add([]byte("version: v1\nmig-configs: {x: [{devices: [0], mig-enabled: true, mig-devices: {}}]}"))
	s := migtest.Snapshot(f, "mixed")
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := layout.Parse(data)
		if err != nil {
			return
		}
		for _, name := range file.Names() {
			layouts, err := file.Select(name, s)
			if err != nil {
				t.Fatalf("configuration %q of the file: %v", name, err)
			}
			for _, g := range s.GPUs {
				if l, ok := layouts[g.PCI]; ok {
					p, err := l.Plan(g)
					if err == nil && p.Switch && p.Mode != l.Enabled {
						t.Errorf("%s: %+v", l, p)
					}
				}
			}
		}
	})
}

// A plan from nothing, and one where all is done, as at every look at the hardware.
func BenchmarkPlan(b *testing.B) {
	for name, g := range map[string]inventory.GPU{
		"make": gpu(b, "hgx-h100-8", on), "done": gpu(b, "hgx-h100-8", with(b, declared, "4g.40gb:0", "1g.10gb:6", "1g.10gb:5")),
	} {
		b.Run(name, func(b *testing.B) {
			l := of("4g.40gb=1 1g.10gb=2")
			for b.Loop() {
				if _, err := l.Plan(g); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package mig_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
)

func geometry(t testing.TB, g inventory.GPU) mig.Geometry {
	t.Helper()
	out, ok := mig.NewGeometry(g)
	if !ok {
		t.Fatalf("GPU %s (%s) has no geometry", g.PCI, g.ProductName)
	}
	return out
}

// amounts makes counters comparable.
func amounts(counters map[string]resourceapi.Counter) map[string]int64 {
	out := map[string]int64{}
	for name, c := range counters {
		out[name] = c.Value.Value()
	}
	return out
}

func first(t testing.TB, preset string) inventory.GPU {
	t.Helper()
	return migtest.Snapshot(t, preset).GPUs[0]
}

// The counters of boards that differ in what matters: 8, 4 and 12 memory slices, and engine
// figures by which the parts have more than the whole.
func TestCounterSet(t *testing.T) {
	const gib = 1 << 30
	for preset, want := range map[string]map[string]int64{
		"hgx-h100-8":     {"units": 8, "multiprocessors": 132, "copy-engines": 8, "decoders": 7, "jpeg-engines": 7, "ofa-engines": 1, "memory": 79*gib + gib/4},
		"a30-4":          {"units": 4, "multiprocessors": 56, "copy-engines": 4, "decoders": 4, "jpeg-engines": 1, "ofa-engines": 1, "memory": 23*gib + 448<<20},
		"rtx-pro-6000-8": {"units": 12, "multiprocessors": 188, "copy-engines": 4, "decoders": 4, "encoders": 4, "jpeg-engines": 4, "ofa-engines": 1, "memory": 95 * gib},
	} {
		g := first(t, preset)
		set := geometry(t, g).CounterSet()
		if set.Name != "gpu-"+g.PCI.Label() {
			t.Errorf("%s: the set is named %s", preset, set.Name)
		}
		for i := range want["units"] {
			want[fmt.Sprintf("memory-slice-%d", i)] = 1
		}
		delete(want, "units")
		if diff := cmp.Diff(want, amounts(set.Counters)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", preset, diff)
		}
	}
}

// fits tells whether partitions can be allocated together.
func fits(g mig.Geometry, parts ...mig.Partition) bool {
	left := amounts(g.CounterSet().Counters)
	for _, p := range parts {
		for name, n := range amounts(g.Consumes(p).Counters) {
			if left[name] -= n; left[name] < 0 {
				return false
			}
		}
	}
	return true
}

// of gives the partitions of one profile in the order of their starts.
func of(g mig.Geometry, profile string) []mig.Partition {
	parts := slices.DeleteFunc(g.Partitions(nil), func(p mig.Partition) bool { return p.Profile.Name != profile })
	slices.Reverse(parts)
	return parts
}

// Every board holds as many instances of a profile as NVML says, and not one more.
func TestInstanceCounts(t *testing.T) {
	for _, preset := range migtest.Presets() {
		for _, gpu := range migtest.Snapshot(t, preset).GPUs {
			g, ok := mig.NewGeometry(gpu)
			if !ok {
				continue
			}
			for _, p := range gpu.MIG.Profiles {
				parts := disjoint(of(g, p.Name))
				if len(parts) < p.MaxInstances || !fits(g, parts[:p.MaxInstances]...) {
					t.Errorf("%s: %d of %s do not fit %s", preset, p.MaxInstances, p.Name, gpu.ProductName)
				}
				if len(parts) > p.MaxInstances && fits(g, parts[:p.MaxInstances+1]...) {
					t.Errorf("%s: more than %d of %s fit %s", preset, p.MaxInstances, p.Name, gpu.ProductName)
				}
			}
		}
	}
}

// disjoint keeps the partitions that overlap none before them.
func disjoint(parts []mig.Partition) []mig.Partition {
	var out []mig.Partition
	for _, p := range parts {
		if !slices.ContainsFunc(out, func(o mig.Partition) bool { return o.Placement.Overlaps(p.Placement) }) {
			out = append(out, p)
		}
	}
	return out
}

// A profile that nothing else holds to its number of instances gets a counter of its own.
func TestLimitedProfile(t *testing.T) {
	g := first(t, "hgx-h100-8")
	i := slices.IndexFunc(g.MIG.Profiles, func(p inventory.MIGProfile) bool { return p.Name == "1g.10gb+me" })
	g.MIG.Profiles[i].OFAEngines = 0
	made := geometry(t, g)
	parts := of(made, "1g.10gb+me")
	if !fits(made, parts[0]) || fits(made, parts[0], parts[3]) || !fits(made, append(of(made, "1g.10gb")[1:], parts[0])...) {
		t.Error("one 1g.10gb+me beside six 1g.10gb is what fits")
	}
	if n := amounts(made.CounterSet().Counters)["instances-of-1g-10gb-with-me"]; n != 1 {
		t.Errorf("its counter is %d", n)
	}
}

// The mixes of the usual layouts fit every board that has the profiles.
func TestMixes(t *testing.T) {
	for preset, mix := range map[string][]string{
		"hgx-h100-8":     {"4g.40gb:0", "1g.10gb:4", "1g.10gb:5", "1g.10gb:6"},
		"hgx-b200-8":     {"4g.90gb:0", "2g.45gb:4", "1g.23gb:6"},
		"dgx-a100-80":    {"3g.40gb:4", "2g.20gb:0", "1g.10gb+me:2", "1g.10gb:3"},
		"hgx-h200-8":     {"1g.35gb:6", "3g.71gb:0", "2g.35gb:4"},
		"a30-4":          {"2g.12gb:2", "1g.6gb:0", "1g.6gb+me:1"},
		"rtx-pro-6000-8": {"1g.24gb+me.all:0", "1g.24gb-me:3", "2g.48gb-me:6"},
	} {
		g := geometry(t, first(t, preset))
		var parts []mig.Partition
		for _, name := range mix {
			profile, start, _ := strings.Cut(name, ":")
			i := slices.IndexFunc(g.Partitions(nil), func(p mig.Partition) bool {
				return p.Profile.Name == profile && fmt.Sprint(p.Placement.Start) == start
			})
			if i < 0 {
				t.Fatalf("%s has no %s", preset, name)
			}
			parts = append(parts, g.Partitions(nil)[i])
		}
		if !fits(g, parts...) {
			t.Errorf("%s: %v do not fit together", preset, mix)
		}
	}
	pro := geometry(t, first(t, "rtx-pro-6000-8"))
	if fits(pro, of(pro, "1g.24gb+me.all")[0], of(pro, "1g.24gb")[1]) {
		t.Error("a profile with all media engines leaves some to others")
	}
}

func TestWholeExcludesAll(t *testing.T) {
	for _, preset := range migtest.Presets() {
		g := geometry(t, first(t, preset))
		if diff := cmp.Diff(amounts(g.CounterSet().Counters), amounts(g.Whole().Counters)); diff != "" {
			t.Errorf("%s: the whole GPU does not consume all (-set +whole):\n%s", preset, diff)
		}
		for _, p := range g.Partitions(nil) {
			if len(g.Consumes(p).Counters) == 0 || g.Consumes(p).CounterSet != g.CounterSet().Name {
				t.Errorf("%s: %s consumes %+v", preset, p.Label, g.Consumes(p))
			}
		}
	}
}

// Labels are distinct and legal, whatever the profiles are called.
func TestLabels(t *testing.T) {
	got := map[string]string{}
	for _, p := range geometry(t, first(t, "rtx-pro-6000-8")).Partitions(nil) {
		if p.Placement.Start == 0 {
			got[p.Profile.Name] = p.Label
		}
	}
	want := map[string]string{
		"1g.24gb": "1g-24gb-0", "1g.24gb+me": "1g-24gb-with-me-0", "1g.24gb-me": "1g-24gb-without-me-0",
		"1g.24gb+me.all": "1g-24gb-with-me-all-0", "1g.24gb+gfx": "1g-24gb-with-gfx-0", "2g.48gb": "2g-48gb-0",
		"2g.48gb+gfx": "2g-48gb-with-gfx-0", "2g.48gb+me.all": "2g-48gb-with-me-all-0", "2g.48gb-me": "2g-48gb-without-me-0",
		"4g.96gb": "4g-96gb-0", "4g.96gb+gfx": "4g-96gb-with-gfx-0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	rapid.Check(t, func(t *rapid.T) {
		gpu := inventory.GPU{MIG: inventory.MIG{Profiles: anyProfiles(t)}}
		g, ok := mig.NewGeometry(gpu)
		if !ok {
			return
		}
		seen, keys := map[string]bool{}, map[string]bool{}
		for _, p := range g.Partitions(nil) {
			name := "gpu-00010000-1a-00-0-mig-" + p.Label
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 || seen[name] {
				t.Fatalf("label of %+v is %q: taken %t, %v", p, p.Label, seen[name], problems)
			}
			seen[name], keys[fmt.Sprintf("%d %s", p.Profile.ID, p.Key())] = true, true
			profile, at, err := mig.ParseKey(p.Key())
			if err != nil || profile != p.Profile.Name || at != p.Placement {
				t.Fatalf("key %q is read as %q at %v, %v", p.Key(), profile, at, err)
			}
			for name, n := range amounts(g.Consumes(p).Counters) {
				if total := amounts(g.CounterSet().Counters)[name]; n > total || n <= 0 {
					t.Fatalf("%s consumes %d of %d %s", p.Label, n, total, name)
				}
			}
		}
		if len(keys) != len(seen) {
			t.Fatalf("%d keys for %d partitions", len(keys), len(seen))
		}
	})
}

// anyProfiles are profiles that no board has.
func anyProfiles(t *rapid.T) []inventory.MIGProfile {
	small := rapid.IntRange(0, 5)
	name := rapid.OneOf(rapid.SampledFrom([]string{"1g.5gb", "1g.5gb+me", "1g.5gb-me", "1G.5GB", "1c.2g.5gb", "1g_5gb", "", "é", strings.Repeat("9", 80)}), rapid.StringN(0, 12, 90))
	var out []inventory.MIGProfile
	for range rapid.IntRange(0, 8).Draw(t, "profiles") {
		p := inventory.MIGProfile{
			ID: small.Draw(t, "id"), Name: name.Draw(t, "name"), Slices: small.Draw(t, "slices"), MaxInstances: small.Draw(t, "max"),
			MemoryBytes: rapid.Uint64().Draw(t, "memory"), Multiprocessors: small.Draw(t, "SMs"), Decoders: small.Draw(t, "decoders"),
		}
		seen := map[inventory.MIGPlacement]bool{}
		for range small.Draw(t, "placements") {
			at := inventory.MIGPlacement{Start: rapid.IntRange(-1, 12).Draw(t, "start"), Size: small.Draw(t, "size")}
			if !seen[at] {
				p.Placements = append(p.Placements, at)
			}
			seen[at] = true
		}
		out = append(out, p)
	}
	return out
}

// Partitions are profiles in the order of their memory, and placements from the end.
func TestOrder(t *testing.T) {
	var labels []string
	g := geometry(t, first(t, "a30-4"))
	for _, p := range g.Partitions(nil) {
		labels = append(labels, p.Label)
	}
	want := []string{
		"1g-6gb-3", "1g-6gb-2", "1g-6gb-1", "1g-6gb-0", "1g-6gb-with-me-3", "1g-6gb-with-me-2", "1g-6gb-with-me-1", "1g-6gb-with-me-0",
		"2g-12gb-2", "2g-12gb-0", "2g-12gb-with-me-2", "2g-12gb-with-me-0", "4g-24gb-0",
	}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	ascending := g.Partitions(func(a, b mig.Partition) int { return a.Placement.Start - b.Placement.Start })
	if ascending[0].Label != "1g-6gb-0" || len(ascending) != len(want) {
		t.Errorf("with another order the first is %s of %d", ascending[0].Label, len(ascending))
	}
}

func TestNoGeometry(t *testing.T) {
	good := inventory.MIGProfile{ID: 19, Name: "1g.10gb", Slices: 1, MaxInstances: 7, Placements: []inventory.MIGPlacement{{Size: 1}}}
	for name, spoil := range map[string]func(*inventory.MIGProfile){
		"no name":               func(p *inventory.MIGProfile) { p.Name = "" },
		"a compute instance's":  func(p *inventory.MIGProfile) { p.Name = "1c.2g.20gb" },
		"no placement":          func(p *inventory.MIGProfile) { p.Placements = nil },
		"a placement of size 0": func(p *inventory.MIGProfile) { p.Placements[0].Size = 0 },
		"no instances":          func(p *inventory.MIGProfile) { p.MaxInstances = 0 },
		"no compute slice":      func(p *inventory.MIGProfile) { p.Slices = 0 },
	} {
		bad := good
		bad.Placements = slices.Clone(good.Placements)
		spoil(&bad)
		if _, ok := mig.NewGeometry(inventory.GPU{MIG: inventory.MIG{Profiles: []inventory.MIGProfile{bad}}}); ok {
			t.Errorf("a profile with %s is a geometry", name)
		}
		mixed := geometry(t, inventory.GPU{MIG: inventory.MIG{Profiles: []inventory.MIGProfile{bad, {ID: 1, Name: "x", Slices: 1, MaxInstances: 1, Placements: good.Placements}}}})
		if n := len(mixed.Partitions(nil)); n != 1 {
			t.Errorf("beside a profile with %s there are %d partitions", name, n)
		}
	}
	if _, ok := mig.NewGeometry(inventory.GPU{MIG: inventory.MIG{Profiles: []inventory.MIGProfile{good}}}); !ok {
		t.Error("a good profile is none")
	}
}

func TestProfile(t *testing.T) {
	g := geometry(t, first(t, "hgx-h100-8"))
	if p, ok := g.Profile(19); !ok || p.Name != "1g.10gb" {
		t.Errorf("profile 19 is %+v", p)
	}
	if p, ok := g.Profile(99); ok {
		t.Errorf("profile 99 is %+v", p)
	}
	if g.Units() != 8 {
		t.Errorf("%d units", g.Units())
	}
}

func FuzzParseKey(f *testing.F) {
	for _, key := range []string{"1g.10gb:0+1", "1g.24gb+me:9+3", "a:b:1+2", ":1+2", "x:1", "x:+1", "x:01+1", "x:1+0", "x:70000+1", "x:1+1+1"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		profile, at, err := mig.ParseKey(key)
		if err != nil {
			return
		}
		p := mig.Partition{Profile: inventory.MIGProfile{Name: profile}, Placement: at}
		if p.Key() != key || at.Size < 1 || at.Start < 0 {
			t.Errorf("%q is read as %q at %v", key, profile, at)
		}
	})
}

func BenchmarkGeometry(b *testing.B) {
	gpu := first(b, "rtx-pro-6000-8")
	for b.Loop() {
		g, _ := mig.NewGeometry(gpu)
		for _, p := range g.Partitions(nil) {
			if len(g.Consumes(p).Counters) == 0 {
				b.Fatal(p.Label)
			}
		}
	}
}

// What a partition does not consume could not have run out: whatever is allocated together fits
// the engines too.
func TestWhatIsNotConsumedIsPlenty(t *testing.T) {
	geometries := map[string]mig.Geometry{}
	for _, preset := range migtest.Presets() {
		geometries[preset] = geometry(t, first(t, preset))
	}
	rapid.Check(t, func(t *rapid.T) {
		g := geometries[rapid.SampledFrom(migtest.Presets()).Draw(t, "preset")]
		if rapid.Bool().Draw(t, "a board that nobody knows") {
			made, ok := mig.NewGeometry(inventory.GPU{MIG: inventory.MIG{Profiles: anyProfiles(t)}})
			if !ok {
				return
			}
			g = made
		}
		var taken []mig.Partition
		for range rapid.IntRange(1, 12).Draw(t, "claims") {
			p := rapid.SampledFrom(g.Partitions(nil)).Draw(t, "partition")
			if fits(g, append(slices.Clone(taken), p)...) {
				if !g.Fits(p, taken) {
					t.Fatalf("%s fits by its counters beside %v and not by its engines", p.Label, taken)
				}
				taken = append(taken, p)
			}
		}
	})
}

// The counters that decide are few: on most boards the memory slices, and what only some
// profiles have.
func TestScarceEngines(t *testing.T) {
	for preset, want := range map[string][]string{
		"hgx-h100-8": {"ofa-engines"}, "a30-4": {"jpeg-engines", "ofa-engines"},
		"rtx-pro-6000-8": {"decoders", "encoders", "jpeg-engines", "ofa-engines"},
	} {
		g := geometry(t, first(t, preset))
		seen := map[string]bool{}
		for _, p := range g.Partitions(nil) {
			for name := range g.Consumes(p).Counters {
				if !strings.HasPrefix(name, "memory-slice-") {
					seen[name] = true
				}
			}
		}
		got := []string{}
		for name := range seen {
			got = append(got, name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", preset, diff)
		}
	}
}

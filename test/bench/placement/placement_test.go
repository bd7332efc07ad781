package placement_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
	"github.com/gpu-dra/driver/test/bench/placement"
)

// published is what the first GPUs of a preset publish. Those whose MIG mode is not switched at
// once have it on, as if the driver had done that: the whole GPU is on offer, too.
func published(t testing.TB, preset string, gpus int) []resourceslice.Slice {
	t.Helper()
	s := migtest.Snapshot(t, preset)
	s.GPUs = s.GPUs[:gpus]
	for i := range s.GPUs {
		s.GPUs[i].MIG.Enabled = s.GPUs[i].ComputeMajor < 9
		s.GPUs[i].MIG.Ours = s.GPUs[i].MIG.Enabled
	}
	a, _ := topology.Resolve(s, topology.Memory{})
	p := device.FromPartitionedSnapshot(s, a, nil)
	return slices.Build(slices.Input{Devices: p.Devices, Counters: p.Counters, Topology: p.Topology, Vocabulary: device.VocabularyFull}).Slices
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// claim asks for one device of a kind.
func claim(kind string) *resourceapi.ResourceClaim {
	if kind == placement.Whole {
		return slicestest.Claim("", slicestest.Request("a", 1))
	}
	return slicestest.Claim("", slicestest.Partition("a", 1, fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == %q`, kind)))
}

// presets are boards of four, eight and twelve memory slices.
var presets = []string{"a30-4", "hgx-h100-8", "rtx-pro-6000-8"}

// What the study rests on: its first fit chooses what the scheduler's allocator chooses, request
// by request, with the real slices.
func TestFirstFitIsTheScheduler(t *testing.T) {
	for _, preset := range presets {
		t.Run(preset, func(t *testing.T) {
			slices := published(t, preset, 3)
			pool := must[*placement.Pool](t)(placement.NewPool(slices))
			kinds := must[[]placement.Kind](t)(placement.Kinds(pool))
			load := placement.Load{Demand: placement.Even(kinds...), Offered: 1.2, Capacity: 3 * kinds[len(kinds)-1].Units, Requests: 120, Seed: 7}
			scheduler, no := slicestest.New(slices, false), 0
			err := placement.Replay(pool, placement.FirstFit{}, load, func(_ *placement.State, s placement.Step) {
				for _, i := range s.Returned {
					scheduler.Return(pool.Devices[i].Name)
				}
				got := must[[]string](t)(scheduler.Allocate(t.Context(), claim(s.Kind.Kind)))
				var want []string
				if s.Accepted {
					want = []string{pool.Devices[s.Device].Name}
				} else {
					no++
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("%s (-first fit +scheduler):\n%s", s.Kind.Kind, diff)
				}
			})
			if err != nil || no < 5 {
				t.Errorf("%d requests of %d found no room, %v", no, load.Requests, err)
			}
		})
	}
}

// quick is a study that takes a second.
var quick = placement.Options{Loads: []float64{0.6, 1}, Seeds: 6, Requests: 800, WarmUp: 100}

// The published order is at least as good as the other orders, and not far from a free choice.
func TestPublishedOrder(t *testing.T) {
	for _, preset := range presets {
		t.Run(preset, func(t *testing.T) {
			pool := must[*placement.Pool](t)(placement.NewPool(published(t, preset, 4)))
			rules := placement.Rules(pool)
			rows := must[[]placement.Row](t)(placement.Compare(t.Context(), pool, rules, quick))
			if len(rows) != 4 {
				t.Fatalf("%d rows", len(rows))
			}
			sums := make([]float64, len(rules))
			for _, r := range rows {
				for i, f := range r.Accepted {
					sums[i] += f.Mean / float64(len(rows))
				}
			}
			const noise = 0.005
			if sums[0] < sums[1]-noise || sums[0] < sums[2] {
				t.Errorf("published %.4f, ascending %.4f, start by start %.4f", sums[0], sums[1], sums[2])
			}
			if best := max(sums[3], sums[4]); sums[0] < best-0.04 || best > 1 {
				t.Errorf("published %.4f, free %.4f", sums[0], best)
			}
			table := placement.Table(preset, rules, rows)
			if strings.Count(table, "\n") != len(rows)+2 || !strings.Contains(table, "start by start") {
				t.Errorf("table:\n%s", table)
			}
		})
	}
}

// A load of one seed is the same whoever chooses, and another of another seed.
func TestLoadsAreRepeated(t *testing.T) {
	pool := must[*placement.Pool](t)(placement.NewPool(published(t, "a30-4", 2)))
	kinds := must[[]placement.Kind](t)(placement.Kinds(pool))
	asked := func(chooser placement.Chooser, seed uint64) (out []string) {
		load := placement.Load{Demand: placement.Small(kinds...), Offered: 1, Capacity: 8, Requests: 50, Seed: seed}
		if err := placement.Replay(pool, chooser, load, func(_ *placement.State, s placement.Step) { out = append(out, s.Kind.Kind) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := asked(placement.FirstFit{}, 1)
	if diff := cmp.Diff(first, asked(placement.NewBestFit(placement.Small(kinds...), true), 1)); diff != "" {
		t.Errorf("requests (-first fit +best fit):\n%s", diff)
	}
	if cmp.Equal(first, asked(placement.FirstFit{}, 2)) {
		t.Error("two seeds ask for the same")
	}
}

func TestDemands(t *testing.T) {
	pool := must[*placement.Pool](t)(placement.NewPool(published(t, "hgx-h100-8", 1)))
	kinds := must[[]placement.Kind](t)(placement.Kinds(pool))
	want := []placement.Kind{
		{Kind: "1g.10gb", Units: 1},
		{Kind: "1g.20gb", Units: 1},
		{Kind: "2g.20gb", Units: 2},
		{Kind: "3g.40gb", Units: 3},
		{Kind: "4g.40gb", Units: 4},
		{Kind: placement.Whole, Units: 7},
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	for _, d := range []placement.Demand{placement.Even(kinds...), placement.Small(kinds...)} {
		sum := 0.0
		for _, k := range d {
			sum += k.Share
		}
		if math.Abs(sum-1) > 1e-9 || d[0].Share < d[5].Share {
			t.Errorf("shares of %+v sum up to %f", d, sum)
		}
	}
}

// A state refuses what is taken, what shares a counter with it, and nothing else.
func TestState(t *testing.T) {
	pool := must[*placement.Pool](t)(placement.NewPool(published(t, "a30-4", 2)))
	s := must[*placement.State](t)(placement.NewState(pool))
	find := func(name string) int {
		for i, d := range pool.Devices {
			if strings.HasSuffix(d.Name, name) {
				return i
			}
		}
		t.Fatalf("there is no device %s", name)
		return 0
	}
	one, two, beside := find("21-00-0-mig-1g-6gb-0"), find("21-00-0-mig-2g-12gb-0"), find("21-00-0-mig-2g-12gb-2")
	s.Take(one)
	if s.Fits(one) || s.Fits(two) || s.Fits(find("gpu-0000-21-00-0")) || !s.Fits(beside) || !s.Fits(find("gpu-0000-41-00-0")) {
		t.Error("the wrong devices fit beside one")
	}
	s.Return(one)
	if !s.Fits(one) || !s.Fits(two) {
		t.Error("not all fits again")
	}
}

func TestStarts(t *testing.T) {
	pool := must[*placement.Pool](t)(placement.NewPool(published(t, "a30-4", 2)))
	starts := placement.PublishedStarts(pool)
	want := placement.Starts{
		"1g.6gb": {3, 2, 1, 0}, "1g.6gb+me": {3, 2, 1, 0}, "2g.12gb": {2, 0}, "2g.12gb+me": {2, 0}, "4g.24gb": {0},
	}
	if diff := cmp.Diff(want, starts); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{0, 2}, starts.Ascending()["2g.12gb"]); diff != "" {
		t.Errorf("ascending (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, placement.PublishedStarts(starts.Ascending().Pool(starts.Pool(pool))).Ascending(), cmp.Comparer(func(a, b []int) bool { return len(a) == len(b) })); diff != "" {
		t.Errorf("reordered (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(starts.Ascending(), placement.PublishedStarts(starts.Ascending().Pool(pool))); diff != "" {
		t.Errorf("a pool in ascending order (-want +got):\n%s", diff)
	}
}

// A climb ends at the order with the highest score.
func TestClimb(t *testing.T) {
	want := []int{2, 0, 3, 1}
	best, tried, err := placement.Climb(placement.Starts{"a": {0, 1, 2, 3}, "b": {0}}, func(s placement.Starts) (float64, error) {
		right := 0.0
		for i, at := range s["a"] {
			if at == want[i] {
				right++
			}
		}
		return right, nil
	})
	if diff := cmp.Diff(placement.Starts{"a": want, "b": {0}}, best); err != nil || diff != "" || tried < 6 {
		t.Errorf("%d tried, %v (-want +got):\n%s", tried, err, diff)
	}
	fails := func(placement.Starts) (float64, error) { return 0, fmt.Errorf("no score") }
	if _, _, err := placement.Climb(placement.Starts{}, fails); err == nil {
		t.Error("an error of the score is lost")
	}
}

func TestFigure(t *testing.T) {
	got := placement.NewFigure([]float64{1, 2, 3, 4})
	// The standard deviation is the root of 5/3, of the mean a half of that.
	if want := 1.96 * math.Sqrt(5.0/3) / 2; got.Mean != 2.5 || math.Abs(got.Half-want) > 1e-12 {
		t.Errorf("%+v, want 2.5 ± %f", got, want)
	}
}

// Slices that are not as expected are refused by name.
func TestNewPoolErrors(t *testing.T) {
	take := func(set, counter string) resourceapi.Device {
		return resourceapi.Device{Name: "odd", ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
			CounterSet: set, Counters: map[string]resourceapi.Counter{counter: {Value: resource.MustParse("1")}},
		}}}
	}
	set := resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{Name: "set", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("1")}}}}}
	for words, d := range map[string]resourceapi.Device{
		"from 0 counter sets":         {Name: "odd"},
		"there is no counter set not": take("not", "c"),
		"has no d":                    take("set", "d"),
	} {
		_, err := placement.NewPool([]resourceslice.Slice{set, {Devices: []resourceapi.Device{d}}})
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "odd") {
			t.Errorf("error %v, want words like %q", err, words)
		}
	}
}

package slices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	gpuslices "github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
)

const parent = "gpu.nvidia.com/parentUUID"

// partitioned makes the pool of a node that makes partitions.
func partitioned(s inventory.Snapshot) gpuslices.Result {
	a, _ := topology.Resolve(s, topology.Memory{})
	p := device.FromPartitionedSnapshot(s, a, nil)
	return gpuslices.Build(gpuslices.Input{Devices: p.Devices, Counters: p.Counters, Topology: p.Topology, Vocabulary: device.VocabularyFull})
}

// node is the allocator's view of the first GPUs of a preset.
func node(t testing.TB, preset string, gpus int) *slicestest.Scheduler {
	t.Helper()
	s := migtest.Snapshot(t, preset)
	s.GPUs = s.GPUs[:gpus]
	r := partitioned(s)
	if len(r.Omissions) > 0 {
		t.Fatalf("omissions %v", r.Omissions)
	}
	return slicestest.New(r.Slices, false)
}

func profile(name string) string {
	return fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == %q`, name)
}

func memory(size string) string {
	return fmt.Sprintf(`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity(%q)) >= 0`, size)
}

// gets allocates and gives the devices without the part of the names that all GPUs share: the
// number of the GPU among the first eight of a preset, then the partition.
func gets(t testing.TB, s *slicestest.Scheduler, constraint string, requests ...resourceapi.DeviceRequest) []string {
	t.Helper()
	devices, err := s.Allocate(t.Context(), slicestest.Claim(constraint, requests...))
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range devices {
		bus, rest, _ := strings.Cut(strings.TrimPrefix(d, "gpu-0000-"), "-00-0")
		devices[i] = bus + strings.TrimPrefix(rest, "-mig-")
		if rest != "" {
			devices[i] = bus + " " + strings.TrimPrefix(rest, "-mig-")
		}
	}
	return devices
}

// compute asks for a share of a GPU's multiprocessors.
func compute(least int) string {
	return fmt.Sprintf(`device.capacity["gpu.nvidia.com"].multiprocessors.compareTo(quantity("%d")) >= 0`, least)
}

func same(t testing.TB, what string, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Seven small ones fill a GPU, the eighth is on the next, and a whole GPU excludes partitions as
// they exclude it.
func TestPartitionsAndWholeGPUs(t *testing.T) {
	s := node(t, "hgx-h100-8", 3)
	for i := range 7 {
		same(t, "small one", []string{fmt.Sprintf("1b 1g-10gb-%d", 6-i)}, gets(t, s, "", slicestest.Partition("a", 1, profile("1g.10gb"))))
	}
	same(t, "the eighth", []string{"43 1g-10gb-6"}, gets(t, s, "", slicestest.Partition("a", 1, profile("1g.10gb"))))
	same(t, "a whole one", []string{"52"}, gets(t, s, "", slicestest.Request("a", 1)))
	same(t, "another whole one", nil, gets(t, s, "", slicestest.Request("a", 1)))
	same(t, "a large one", []string{"43 4g-40gb-0"}, gets(t, s, "", slicestest.Partition("a", 1, profile("4g.40gb"))))
	same(t, "all of a GPU", nil, gets(t, s, "", slicestest.Partition("a", 1, profile("7g.80gb"))))
}

// The mixed scheme, several of one parent, by memory, and a whole GPU where there is no room.
func TestWaysToAsk(t *testing.T) {
	s := node(t, "hgx-h100-8", 2)
	mixed := []resourceapi.DeviceRequest{slicestest.Partition("large", 1, profile("4g.40gb")), slicestest.Partition("small", 2, profile("1g.10gb"))}
	same(t, "4g and 2 x 1g", []string{"1b 4g-40gb-0", "1b 1g-10gb-6", "1b 1g-10gb-5"}, gets(t, s, parent, mixed...))
	same(t, "four of one parent", []string{"43 1g-10gb-6", "43 1g-10gb-5", "43 1g-10gb-4", "43 1g-10gb-3"}, gets(t, s, parent, slicestest.Partition("a", 4, profile("1g.10gb"))))

	s = node(t, "hgx-h100-8", 1)
	same(t, "at least 15 GiB", []string{"1b 1g-20gb-6"}, gets(t, s, "", slicestest.Partition("a", 1, memory("15Gi"))))
	same(t, "at least 30 GiB", []string{"1b 3g-40gb-0"}, gets(t, s, "", slicestest.Partition("a", 1, memory("30Gi"))))
	same(t, "anything", []string{"1b 1g-10gb-5"}, gets(t, s, "", slicestest.Partition("a", 1)))

	s = node(t, "hgx-h100-8", 1)
	same(t, "a fifth of the GPU's 132 multiprocessors", []string{"1b 2g-20gb-4"}, gets(t, s, "", slicestest.Partition("a", 1, compute(27))))
	same(t, "nearly half", []string{"1b 3g-40gb-0"}, gets(t, s, "", slicestest.Partition("a", 1, compute(60))))
	same(t, "more than is left", nil, gets(t, s, "", slicestest.Partition("a", 1, compute(27))))

	s = node(t, "hgx-h100-8", 2)
	either := slicestest.FirstOf("a", slicestest.Partition("part", 1, profile("4g.40gb")), slicestest.Request("whole", 1))
	same(t, "a part", []string{"1b 4g-40gb-0"}, gets(t, s, "", either))
	same(t, "a part of the next", []string{"43 4g-40gb-0"}, gets(t, s, "", either))
	same(t, "nothing whole is left", nil, gets(t, s, "", either))
	// By profile, without the profiles with all media engines or none.
	s = node(t, "rtx-pro-6000-8", 1)
	if got := gets(t, s, parent, slicestest.Partition("a", 4, profile("1g.24gb"))); len(got) != 4 {
		t.Errorf("four of twelve memory slices: %v", got)
	}
}

// The media engines are given once: with all of them taken, only profiles without any fit.
func TestMediaEngines(t *testing.T) {
	s := node(t, "rtx-pro-6000-8", 1)
	if got := gets(t, s, "", slicestest.Partition("a", 1, profile("1g.24gb+me.all"))); len(got) != 1 {
		t.Fatalf("got %v", got)
	}
	same(t, "with an engine", nil, gets(t, s, "", slicestest.Partition("a", 1, profile("1g.24gb"))))
	if got := gets(t, s, "", slicestest.Partition("a", 3, profile("1g.24gb-me"))); len(got) != 3 {
		t.Errorf("without engines: %v", got)
	}
}

// Whatever is asked for in whatever order, no two devices that are given share hardware.
func TestAllocationsNeverOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		snapshot := migtest.Snapshot(t, rapid.SampledFrom([]string{"hgx-h100-8", "a30-4", "rtx-pro-6000-8", "mixed"}).Draw(rt, "preset"))
		snapshot.GPUs = snapshot.GPUs[:2]
		for i := range snapshot.GPUs {
			snapshot.GPUs[i].MIG.Enabled = snapshot.GPUs[i].MIG.Capable && snapshot.GPUs[i].ComputeMajor < 9
		}
		a, _ := topology.Resolve(snapshot, topology.Memory{})
		byName := map[string]device.Device{}
		for _, d := range device.FromPartitionedSnapshot(snapshot, a, nil).Devices {
			byName[d.Name()] = d
		}
		s := slicestest.New(partitioned(snapshot).Slices, false)
		var given []device.Device
		for range rapid.IntRange(1, 8).Draw(rt, "claims") {
			request := slicestest.Request("a", 1)
			if rapid.IntRange(0, 4).Draw(rt, "kind") > 0 {
				p := rapid.SampledFrom(append([]inventory.MIGProfile{{Name: "none"}}, snapshot.GPUs[0].MIG.Profiles...)).Draw(rt, "profile")
				request = slicestest.Partition("a", 1, profile(p.Name))
			}
			names, err := s.Allocate(t.Context(), slicestest.Claim("", request))
			if err != nil {
				rt.Fatal(err)
			}
			for _, n := range names {
				if i := slices.IndexFunc(given, func(g device.Device) bool { return g.Overlaps(byName[n].Identity()) }); i >= 0 {
					rt.Fatalf("%s overlaps %s", n, given[i].Name())
				}
				given = append(given, byName[n])
			}
		}
	})
}

func BenchmarkPartitionedPool(b *testing.B) {
	s := migtest.Snapshot(b, "hgx-h100-8")
	for b.Loop() {
		partitioned(s)
	}
}

func BenchmarkAllocatePartitions(b *testing.B) {
	for name, requests := range map[string][]resourceapi.DeviceRequest{
		"1 x 1g": {slicestest.Partition("a", 1, profile("1g.10gb"))},
		"7 x 1g": {slicestest.Partition("a", 7, profile("1g.10gb"))},
		"whole":  {slicestest.Request("a", 1)},
	} {
		b.Run(name, func(b *testing.B) {
			s := node(b, "hgx-h100-8", 8)
			claim := slicestest.Claim("", requests...)
			for b.Loop() {
				if got, err := s.Free(b.Context(), claim); err != nil || len(got) == 0 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

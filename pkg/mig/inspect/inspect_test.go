package inspect_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/inspect"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
)

// seen is a look at the hardware.
type seen struct {
	inventory.Snapshot
	err error
}

func (s seen) Scan(context.Context) (inventory.Snapshot, error) { return s.Snapshot, s.err }

const file = `version: v1
mig-configs:
  mixed:
  - devices: [0]
    mig-enabled: true
    mig-devices: {"4g.40gb": 1, "1g.10gb": 2}
  - devices: [1]
    mig-enabled: false
  too-many:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 8}
`

func layouts(t testing.TB) layout.File {
	t.Helper()
	f, err := layout.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// pair are two H100, the first laid out as "mixed" says, partly by another tool.
func pair(t testing.TB) inventory.Snapshot {
	t.Helper()
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:2]
	for _, part := range []string{"4g.40gb:0", "1g.10gb:4", "1g.10gb:6"} {
		s.GPUs[0] = migtest.With(t, s.GPUs[0], part == "1g.10gb:4", part)
	}
	return s
}

func TestAssert(t *testing.T) {
	var out strings.Builder
	if err := inspect.Assert(t.Context(), seen{Snapshot: pair(t)}, layouts(t), "mixed", &out); err != nil || out.String() != "2 GPUs are as MIG layout \"mixed\" says\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	other := pair(t)
	other.GPUs[1].MIG.Enabled = true
	other.GPUs[0].MIG.Instances = other.GPUs[0].MIG.Instances[1:]
	out.Reset()
	err := inspect.Assert(t.Context(), seen{Snapshot: other}, layouts(t), "mixed", &out)
	if different := new(inspect.DifferentError); !errors.As(err, &different) || different.GPUs != 2 || !strings.Contains(err.Error(), `"mixed"`) {
		t.Errorf("error %v", err)
	}
	want := "GPU 0000:1b:00.0: want 2 x 1g.10gb, 1 x 4g.40gb, have 2 x 1g.10gb\nGPU 0000:43:00.0: want MIG mode off, have no instances\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	out.Reset()
	err = inspect.Assert(t.Context(), seen{Snapshot: pair(t)}, layouts(t), "too-many", &out)
	if err == nil || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), "7 x 1g.10gb fit") {
		t.Errorf("%q, %v", out.String(), err)
	}
	err = inspect.Assert(t.Context(), seen{Snapshot: pair(t)}, layouts(t), "none", &out)
	if unknown := new(layout.UnknownConfigError); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "mixed, too-many") {
		t.Errorf("error %v", err)
	}
}

// A node that does not say all is neither as declared nor written down.
func TestNothingIsGuessed(t *testing.T) {
	broken := errors.New("broken")
	change := func(f func(*inventory.Snapshot)) inventory.Snapshot {
		s := pair(t)
		f(&s)
		return s
	}
	at := pci.Address{Bus: 0x1b}
	for name, c := range map[string]struct {
		seen seen
		want []string
	}{
		"no look": {seen{err: broken}, []string{"broken"}},
		"no driver": {
			seen{Snapshot: change(func(s *inventory.Snapshot) { s.Driver = inventory.Driver{Missing: "no library below /x", Err: broken} })},
			[]string{"no GPU driver answers", "no library below /x"},
		},
		"a lost GPU": {seen{Snapshot: change(func(s *inventory.Snapshot) {
			s.Unusable = []inventory.Unusable{{PCI: at, Reason: "it fell off the bus", Cause: inventory.CauseLost}}
		})}, []string{"1 GPUs do not say", "0000:1b:00.0: it fell off the bus"}},
		"unread profiles": {seen{Snapshot: change(func(s *inventory.Snapshot) {
			s.Problems = []inventory.Problem{{PCI: at, Fact: "migProfiles", Err: broken}, {PCI: at, Fact: "serial", Err: broken}}
		})}, []string{"1 GPUs do not say", "0000:1b:00.0: migProfiles: broken"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			for command, err := range map[string]error{
				"assert": inspect.Assert(t.Context(), c.seen, layouts(t), "mixed", &out), "export": inspect.Export(t.Context(), c.seen, "x", &out),
			} {
				if err == nil || out.Len() > 0 {
					t.Errorf("%s: %q, %v", command, out.String(), err)
					continue
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error %q does not say %q", command, err, want)
					}
				}
			}
		})
	}
	if err := inspect.Export(t.Context(), seen{Snapshot: change(func(s *inventory.Snapshot) { s.Driver = inventory.Driver{Err: broken} })}, "x", nil); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	// A GPU that another kernel driver has is none of NVML's, and what else is not known does not matter.
	var out strings.Builder
	lent := change(func(s *inventory.Snapshot) {
		s.Unusable = []inventory.Unusable{{PCI: at, Reason: "vfio-pci has it"}}
		s.Problems = []inventory.Problem{{PCI: at, Fact: "serial", Err: broken}, {Fact: "migX", Err: broken}}
	})
	if err := inspect.Export(t.Context(), seen{Snapshot: lent}, "x", &out); err != nil || !strings.Contains(out.String(), "4g.40gb: 1") {
		t.Errorf("%q, %v", out.String(), err)
	}
	// A node without anything to partition has no layout.
	plain := migtest.Snapshot(t, "mixed")
	plain.GPUs = plain.GPUs[3:]
	if err := inspect.Export(t.Context(), seen{Snapshot: plain}, "x", &out); err == nil {
		t.Error("a node without partitions is written down")
	}
}

// full cannot be written to.
type full struct{ error }

func (f full) Write([]byte) (int, error) { return 0, f.error }

func TestOutputThatFails(t *testing.T) {
	broken := errors.New("broken pipe")
	different := pair(t)
	different.GPUs[1].MIG.Enabled = true
	for name, err := range map[string]error{
		"export":    inspect.Export(t.Context(), seen{Snapshot: pair(t)}, "x", full{broken}),
		"equal":     inspect.Assert(t.Context(), seen{Snapshot: pair(t)}, layouts(t), "mixed", full{broken}),
		"different": inspect.Assert(t.Context(), seen{Snapshot: different}, layouts(t), "mixed", full{broken}),
	} {
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is written down of any node holds on that node, and on no other that differs.
func TestExportHolds(t *testing.T) {
	presets := map[string]inventory.Snapshot{}
	for _, name := range migtest.Presets() {
		presets[name] = migtest.Snapshot(t, name)
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := presets[rapid.SampledFrom(migtest.Presets()).Draw(rt, "preset")]
		s.GPUs = slices.Clone(s.GPUs)
		last := -1
		for i := range s.GPUs {
			geometry, ok := mig.NewGeometry(s.GPUs[i])
			if !ok || !rapid.Bool().Draw(rt, "mode") {
				continue
			}
			s.GPUs[i].MIG.Enabled = true
			var placed []mig.Partition
			for range rapid.IntRange(0, 4).Draw(rt, "partitions") {
				part := rapid.SampledFrom(geometry.Partitions(nil)).Draw(rt, "partition")
				if !geometry.Fits(part, placed) {
					continue
				}
				placed, last = append(placed, part), i
				s.GPUs[i].MIG.Instances = append(s.GPUs[i].MIG.Instances, inventory.MIGInstance{
					ProfileID: part.Profile.ID, Placement: part.Placement, Compute: []inventory.MIGCompute{{Slices: part.Profile.Slices}},
				})
			}
		}
		var text, said strings.Builder
		if err := inspect.Export(t.Context(), seen{Snapshot: s}, "now", &text); err != nil {
			rt.Fatal(err)
		}
		f, err := layout.Parse([]byte(text.String()))
		if err != nil {
			rt.Fatalf("%v of\n%s", err, text.String())
		}
		if err := inspect.Assert(t.Context(), seen{Snapshot: s}, f, "now", &said); err != nil {
			rt.Fatalf("%v, %s of\n%s", err, said.String(), text.String())
		}
		if last < 0 {
			return
		}
		s.GPUs[last].MIG.Instances = s.GPUs[last].MIG.Instances[1:]
		if err := inspect.Assert(t.Context(), seen{Snapshot: s}, f, "now", &said); err == nil {
			rt.Fatalf("a partition that went is not missed:\n%s", text.String())
		}
	})
}

package offer_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/topology"
)

func make8(t *testing.T, s offer.Settings, c offer.Conditions) offer.Offer {
	t.Helper()
	snapshot := inventorytest.TwoIslands()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	s.Pool = "node-1"
	made := s.Make(snapshot, assignment, c)
	if len(made.Devices) != 8 || len(made.Resources.Pools) != 1 || len(made.Omissions) != 0 {
		t.Fatalf("%d devices, %d pools, %v", len(made.Devices), len(made.Resources.Pools), made.Omissions)
	}
	return made
}

func published(o offer.Offer) []resourceapi.Device {
	var out []resourceapi.Device
	for _, slice := range o.Resources.Pools["node-1"].Slices {
		out = append(out, slice.Devices...)
	}
	return out
}

func TestSettings(t *testing.T) {
	attributes := func(s offer.Settings) (n int) {
		for _, d := range published(make8(t, s, offer.Conditions{})) {
			n += len(d.Attributes)
		}
		return n
	}
	full := attributes(offer.Settings{Vocabulary: device.VocabularyFull})
	if minimal := attributes(offer.Settings{Vocabulary: device.VocabularyMinimal}); minimal >= full {
		t.Errorf("minimal has %d attributes, full %d", minimal, full)
	}
	if lists := attributes(offer.Settings{Vocabulary: device.VocabularyFull, Lists: true}); lists <= full {
		t.Errorf("with lists there are %d attributes, without %d", lists, full)
	}
}

// The pool of a node without GPUs is there, and empty.
func TestNothingToOffer(t *testing.T) {
	for _, partitions := range []bool{false, true} {
		made := offer.Settings{Pool: "node-1", Partitions: partitions}.Make(inventory.Snapshot{}, topology.Assignment{}, offer.Conditions{})
		if pool, ok := made.Resources.Pools["node-1"]; !ok || len(pool.Slices) != 1 || len(published(made)) != 0 {
			t.Errorf("partitions %v: %+v", partitions, made.Resources)
		}
	}
}

// Taints of all sources are on the devices that they name, and on no others.
func TestConditions(t *testing.T) {
	sick := make8(t, offer.Settings{}, offer.Conditions{}).Devices[3].Name()
	on := func(key string) offer.Tainter {
		return func(d device.Device) []resourceapi.DeviceTaint {
			if d.Name() != sick {
				return nil
			}
			return []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
	}
	made := make8(t, offer.Settings{}, offer.Conditions{Taints: []offer.Tainter{on("gpu.example.com/b"), on("gpu.example.com/a")}})
	got := map[string]int{}
	for _, d := range published(made) {
		if len(d.Taints) > 0 {
			got[d.Name] = len(d.Taints)
		}
	}
	if diff := cmp.Diff(map[string]int{sick: 2}, got); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

// A GPU that can be cut has its partitions before itself, and counters for them.
func TestPartitions(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	kinds := func(s offer.Settings) map[device.Kind]int {
		out := map[device.Kind]int{}
		for _, d := range s.Make(snapshot, assignment, offer.Conditions{}).Devices {
			out[d.Kind()]++
		}
		return out
	}
	if diff := cmp.Diff(map[device.Kind]int{device.KindGPU: 8}, kinds(offer.Settings{})); diff != "" {
		t.Errorf("without partitions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[device.Kind]int{device.KindGPU: 8, device.KindMIG: 200}, kinds(offer.Settings{Partitions: true})); diff != "" {
		t.Errorf("with partitions (-want +got):\n%s", diff)
	}
}

// Declared devices are offered in shares, the others whole; what cannot be shared as declared is
// not offered at all, and said.
func TestShares(t *testing.T) {
	declared, err := shares.Parse(`[{enforcement: mps, replicas: 4, devices: {indices: [0, 1]}}]`)
	if err != nil {
		t.Fatal(err)
	}
	made := make8(t, offer.Settings{Shares: declared}, offer.Conditions{})
	for i, d := range published(made) {
		if shared := d.AllowMultipleAllocations != nil; shared != (i < 2) {
			t.Errorf("%s: shared %t", d.Name, shared)
		}
	}
	snapshot := inventorytest.TwoIslands()
	snapshot.GPUs[0].MemoryBytes = 0
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	less := offer.Settings{Pool: "node-1", Shares: declared}.Make(snapshot, assignment, offer.Conditions{})
	if len(less.Devices) != 7 || len(published(less)) != 7 || len(less.Omissions) != 1 || less.Omissions[0].Device != made.Devices[0].Name() {
		t.Errorf("%d devices, omissions %v", len(less.Devices), less.Omissions)
	}
}

// A GPU whose sharers the driver cannot limit is not offered as if it could.
func TestNoLimits(t *testing.T) {
	declared, err := shares.Parse(`[{enforcement: driver, devices: {indices: [0, 1]}}]`)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := inventorytest.TwoIslands()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	old := make8(t, offer.Settings{Shares: declared}, offer.Conditions{}).Devices[1]
	made := offer.Settings{Pool: "node-1", Shares: declared}.Make(snapshot, assignment, offer.Conditions{NoLimits: func(at pci.Address) string {
		if at == old.Identity().PCI {
			return "too old"
		}
		return ""
	}})
	if len(made.Devices) != 7 || len(published(made)) != 7 || len(made.Omissions) != 1 || made.Omissions[0].Device != old.Name() {
		t.Errorf("%d devices, omissions %v", len(made.Devices), made.Omissions)
	}
}

// What a GPU offers beside or instead of partitions on demand, by layout and by setting.
func TestLayouts(t *testing.T) {
	gpu := func(by string, names ...string) inventory.GPU {
		g := migtest.Snapshot(t, "hgx-h100-8").GPUs[0]
		for _, name := range names {
			g = migtest.With(t, g, by == "claims", name)
		}
		for i := range g.MIG.Instances {
			g.MIG.Instances[i].Declared = by == "layout"
		}
		return g
	}
	one := layout.Layout{Config: "one", Enabled: true, Profiles: map[string]int{"1g.10gb": 1}}
	four := layout.Layout{Config: "four", Enabled: true, Profiles: map[string]int{"4g.40gb": 1}}
	eight := layout.Layout{Config: "eight", Enabled: true, Profiles: map[string]int{"1g.10gb": 8}}
	off := layout.Layout{Config: "off", Profiles: map[string]int{}}
	onDemand, static, hidden := offer.Settings{Partitions: true}, offer.Settings{Partitions: true, NotOnDemand: true}, offer.Settings{Partitions: true, HideForeign: true}
	neither := offer.Settings{Partitions: true, NotOnDemand: true, HideForeign: true}
	const every, whole = "24 more and 1g-10gb-6", "whole"
	for name, c := range map[string]struct {
		gpu      inventory.GPU
		settings offer.Settings
		layout   *layout.Layout
		held     error
		// want are the devices; withheld is a part of the reason, empty where nothing is withheld.
		want, withheld string
	}{
		"none":                     {gpu(""), onDemand, nil, nil, every + " and " + whole, ""},
		"none, static":             {gpu(""), static, nil, nil, whole, ""},
		"others', static":          {gpu("others", "1g.10gb:6"), static, nil, nil, "1g-10gb-6", ""},
		"others'":                  {gpu("others", "7g.80gb:0"), onDemand, nil, nil, "7g-80gb-0", "7g.80gb at 0:8"},
		"others', hidden":          {gpu("others", "7g.80gb:0"), hidden, nil, nil, "", "7g.80gb at 0:8"},
		"others', static, hidden":  {gpu("others", "1g.10gb:6"), neither, nil, nil, "", ""},
		"not applied yet":          {gpu(""), onDemand, &one, nil, "", `layout "one" is applied as soon as nothing uses`},
		"applied":                  {gpu("layout", "1g.10gb:6"), onDemand, &one, nil, "1g-10gb-6", ""},
		"applied, others hidden":   {gpu("layout", "1g.10gb:6"), hidden, &one, nil, "1g-10gb-6", ""},
		"claims' are in the way":   {gpu("claims", "1g.10gb:6"), onDemand, &one, nil, "", "is applied as soon as"},
		"another one":              {gpu("layout", "1g.10gb:6"), onDemand, &four, nil, "", "is applied as soon as"},
		"it does not fit":          {gpu("layout", "1g.10gb:6"), onDemand, &eight, nil, "1g-10gb-6", "no room for 8 x 1g.10gb"},
		"others' are in the way":   {gpu("others", "1g.10gb:0"), onDemand, &four, nil, "1g-10gb-0", "what another tool made"},
		"off, applied":             {gpu(""), onDemand, &off, nil, whole, ""},
		"off, not applied":         {gpu("layout", "1g.10gb:6"), onDemand, &off, nil, "", "is applied as soon as"},
		"not declared any more":    {gpu("layout", "1g.10gb:6"), onDemand, nil, nil, "", "is removed as soon as"},
		"held":                     {gpu("layout", "1g.10gb:6"), onDemand, nil, errors.New("why"), "1g-10gb-6", "why"},
		"held, before it is there": {gpu(""), onDemand, &one, errors.New("why"), "", "why"},
		"held, nothing declared":   {gpu(""), onDemand, nil, errors.New("why"), every + " and " + whole, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := inventory.Snapshot{Driver: inventory.Driver{Present: true}, GPUs: []inventory.GPU{c.gpu}}
			conditions := offer.Conditions{LayoutsHeld: c.held}
			if c.layout != nil {
				conditions.Layouts = layout.Layouts{c.gpu.PCI: *c.layout}
			}
			assignment, _ := topology.Resolve(s, topology.Memory{})
			made := c.settings.Make(s, assignment, conditions)
			var names []string
			for _, d := range made.Devices {
				name := strings.TrimPrefix(strings.TrimPrefix(d.Name(), device.GPUName(c.gpu.PCI)), "-mig-")
				if name == "" {
					name = whole
				}
				names = append(names, name)
			}
			got := strings.Join(names, " and ")
			if len(names) == 26 {
				got = fmt.Sprintf("%d more and %s and %s", len(names)-2, names[0], names[25])
			}
			if got != c.want {
				t.Errorf("devices %q, want %q", got, c.want)
			}
			var reasons []string
			for _, w := range made.Withheld {
				reasons = append(reasons, w.Reason)
			}
			reason := strings.Join(reasons, ", ")
			if (c.withheld == "") != (reason == "") || !strings.Contains(reason, c.withheld) {
				t.Errorf("withheld because %q, want %q", reason, c.withheld)
			}
		})
	}
}

// Where shares of what excludes others are withheld, devices that nobody shares stay, those of the
// same GPU too, and so do shares of GPUs that are not cut.
func TestWithheldShares(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	for name, tt := range map[string]struct {
		declared   string
		partitions bool
		why        string
		// shared and whole count the offered devices.
		shared, whole int
	}{
		"no reason":           {"[{enforcement: none, devices: {indices: [0]}}]", true, "", 1, 207},
		"GPUs that are cut":   {"[{enforcement: none, devices: {indices: [0]}}]", true, "too early", 0, 207},
		"partitions":          {"[{enforcement: none, devices: {indices: [0], profiles: ['*']}}]", true, "too early", 0, 183},
		"GPUs that are not":   {"[{enforcement: none, devices: {indices: [0]}}]", false, "too early", 1, 7},
		"nothing is declared": {"", true, "too early", 0, 208},
	} {
		t.Run(name, func(t *testing.T) {
			declared, err := shares.Parse(tt.declared)
			if err != nil {
				t.Fatal(err)
			}
			all := offer.Settings{Pool: "node-1", Partitions: tt.partitions, Shares: declared}
			before := len(all.Make(snapshot, assignment, offer.Conditions{}).Devices)
			made := all.Make(snapshot, assignment, offer.Conditions{WithheldShares: tt.why})
			shared, whole := 0, 0
			for _, d := range published(made) {
				if d.AllowMultipleAllocations != nil {
					shared++
				} else {
					whole++
				}
			}
			if shared != tt.shared || whole != tt.whole || len(made.Devices) != shared+whole {
				t.Errorf("%d shared and %d whole devices of %d, want %d and %d", shared, whole, len(made.Devices), tt.shared, tt.whole)
			}
			if said := len(made.Omissions) == 1; said != (tt.shared+tt.whole < before) {
				t.Errorf("%d of %d devices are offered, omissions %+v", len(made.Devices), before, made.Omissions)
			}
			for _, o := range made.Omissions {
				if o.Device == "" || !strings.HasSuffix(o.Reason, tt.why) {
					t.Errorf("omission %+v", o)
				}
			}
		})
	}
}

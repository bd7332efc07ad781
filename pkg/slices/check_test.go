package slices_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/slices"
)

type (
	attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacities = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
)

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func counters(names ...string) map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for _, n := range names {
		out[n] = resourceapi.Counter{Value: resource.MustParse("1")}
	}
	return out
}

func uses(set string, names ...string) resourceapi.DeviceCounterConsumption {
	return resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: counters(names...)}
}

func many(n int, name string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%02d", name, i)
	}
	return out
}

// One bad device among good ones: what is left out, and that the rest is published.
func TestBadDevices(t *testing.T) {
	sets := []resourceapi.CounterSet{{Name: "set-a", Counters: counters("memory")}, {Name: "set-b", Counters: counters("memory")}, {Name: "set-c", Counters: counters("memory")}}
	tooMany := capacities{}
	for _, n := range many(33, "c") {
		tooMany[resourceapi.QualifiedName(n)] = resourceapi.DeviceCapacity{}
	}
	for name, tc := range map[string]struct {
		device board
		// omitted is the name that is reported; "" for the device itself.
		omitted, reason string
	}{
		"name with a dot":     {board{name: "gpu.1"}, "", "not a DNS label"},
		"long name":           {board{name: strings.Repeat("x", 64)}, "", "not a DNS label"},
		"name twice":          {board{name: "good"}, "", "another device has this name"},
		"bad attribute name":  {board{name: "bad", published: resourceapi.Device{Attributes: attributes{"a-b": text("x")}}}, "a-b", "C identifier"},
		"long value":          {board{name: "bad", published: resourceapi.Device{Attributes: attributes{"a": text(strings.Repeat("x", 65))}}}, "a", "65 bytes"},
		"no value":            {board{name: "bad", published: resourceapi.Device{Attributes: attributes{"a": {}}}}, "a", "0 values"},
		"bad capacity name":   {board{name: "bad", published: resourceapi.Device{Capacity: capacities{"a.b": {}}}}, "a.b", "C identifier"},
		"too many capacities": {board{name: "bad", published: resourceapi.Device{Capacity: tooMany}}, "", "33 capacities"},
		"three counter sets":  {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", "memory"), uses("set-b", "memory"), uses("set-c", "memory")}}}, "", "3 counter sets"},
		"unknown counter set": {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-z", "memory")}}}, "", "set-z"},
		"counter set twice":   {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", "memory"), uses("set-a", "memory")}}}, "", "named twice"},
		"unknown counter":     {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", "x")}}}, "", `counter "x"`},
		"no counter":          {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a")}}}, "", "0 counters"},
		"too many counters":   {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", many(33, "x")...)}}}, "", "33 counters"},
		"counter is no label": {board{name: "bad", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", "A_b")}}}, "", "A_b"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := tc.device
			bad.gpu = pci.Address{Bus: 9}
			good := board{name: "good", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-a", "memory")}}}
			r := slices.Build(slices.Input{Devices: []device.Device{good, bad}, Counters: sets})
			if len(r.Omissions) != 1 || r.Omissions[0].Device != bad.name || r.Omissions[0].Name != tc.omitted || !strings.Contains(r.Omissions[0].Reason, tc.reason) {
				t.Fatalf("omissions %+v, want %q: %s", r.Omissions, tc.omitted, tc.reason)
			}
			want := 2
			if tc.omitted == "" {
				want = 1
			}
			if r.Count() != want || r.Slices[1].Devices[0].Name != "good" {
				t.Errorf("%d devices are published, want %d: %v", r.Count(), want, r.Slices)
			}
		})
	}
}

func TestTooManyAttributesLoseTheLeastUseful(t *testing.T) {
	attrs := attributes{"uuid": text("u"), "zz": text("z"), "type": text("gpu")}
	for _, n := range many(30, "a") {
		attrs[resourceapi.QualifiedName(n)] = text("x")
	}
	d := board{name: "bad", published: resourceapi.Device{Attributes: attrs, Capacity: capacities{"memory": {Value: resource.MustParse("1Gi")}}}}
	r := slices.Build(slices.Input{Devices: []device.Device{d}})
	var lost []string
	for _, o := range r.Omissions {
		lost = append(lost, o.Name)
	}
	if diff := cmp.Diff([]string{"zz", "a29"}, lost); diff != "" {
		t.Error(diff)
	}
	got := r.Slices[0].Devices[0]
	if len(got.Attributes) != 31 || got.Attributes["uuid"].StringValue == nil || len(got.Capacity) != 1 {
		t.Errorf("%d attributes are left", len(got.Attributes))
	}
}

func TestTooManyValues(t *testing.T) {
	attrs := attributes{"list": {StringValues: many(47, "v")}, "type": text("gpu"), "uuid": text("u")}
	r := slices.Build(slices.Input{Devices: []device.Device{board{name: "bad", published: resourceapi.Device{Attributes: attrs}}}})
	if len(r.Omissions) != 1 || r.Omissions[0].Name != "list" || !strings.Contains(r.Omissions[0].Reason, "49 values") {
		t.Errorf("omissions %+v", r.Omissions)
	}
}

func TestTaints(t *testing.T) {
	taint := func(key, value string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
		return resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect}
	}
	build := func(taints ...resourceapi.DeviceTaint) slices.Result {
		return slices.Build(slices.Input{Devices: []device.Device{board{name: "gpu"}}, Taints: map[string][]resourceapi.DeviceTaint{"gpu": taints}})
	}
	good := taint("gpu.nvidia.com/xid", "79", resourceapi.DeviceTaintEffectNoSchedule)
	for name, bad := range map[string]resourceapi.DeviceTaint{
		"no key":     taint("", "1", "None"),
		"bad key":    taint("a b", "1", "None"),
		"bad value":  taint("a", "x y", "None"),
		"no effect":  taint("a", "1", ""),
		"bad effect": taint("a", "1", "PreferNoSchedule"),
	} {
		t.Run(name, func(t *testing.T) {
			r := build(bad, good)
			if len(r.Omissions) != 1 || r.Omissions[0].Name != "taint "+bad.Key {
				t.Errorf("omissions %+v", r.Omissions)
			}
			if diff := cmp.Diff([]resourceapi.DeviceTaint{good}, r.Slices[0].Devices[0].Taints); diff != "" {
				t.Error(diff)
			}
		})
	}
	var all []resourceapi.DeviceTaint
	for _, key := range many(16, "note") {
		all = append(all, taint(key, "", resourceapi.DeviceTaintEffectNone))
	}
	r := build(append(all, good)...)
	got := r.Slices[0].Devices[0].Taints
	if len(got) != 16 || got[0] != good || len(r.Omissions) != 1 || r.Omissions[0].Name != "taint note15" {
		t.Errorf("of 17 taints these stay: %v; omissions %v", got, r.Omissions)
	}
}

func TestCounterSets(t *testing.T) {
	var sets []resourceapi.CounterSet
	for _, n := range many(16, "set-") {
		sets = append(sets, resourceapi.CounterSet{Name: n, Counters: counters("memory")})
	}
	sets = append(sets, resourceapi.CounterSet{Name: "set-00", Counters: counters("memory")},
		resourceapi.CounterSet{Name: "Bad", Counters: counters("memory")}, resourceapi.CounterSet{Name: "empty"})
	d := board{name: "gpu", published: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{uses("set-15", "memory")}}}
	r := slices.Build(slices.Input{Devices: []device.Device{d}, Counters: sets})
	if len(r.Slices) != 3 || len(r.Slices[0].SharedCounters) != 8 || len(r.Slices[1].SharedCounters) != 8 || len(r.Slices[2].Devices) != 1 {
		t.Errorf("slices %v", r.Slices)
	}
	for i, s := range r.Slices {
		if s.Devices != nil && s.SharedCounters != nil {
			t.Errorf("slice %d holds both", i)
		}
	}
	var names []string
	for _, o := range r.Omissions {
		names = append(names, o.Name)
	}
	if diff := cmp.Diff([]string{"counter set set-00", "counter set Bad", "counter set empty"}, names); diff != "" {
		t.Error(diff)
	}
}

// What is left out is left out of the slice, not of the device, and is reported every time.
func TestCheckLeavesTheDeviceAlone(t *testing.T) {
	attrs := attributes{"a": text("x"), "a-b": {IntValue: ptr.To(int64(1))}}
	in := slices.Input{Devices: []device.Device{board{name: "gpu", published: resourceapi.Device{Attributes: attrs, Capacity: capacities{"c.d": {}}}}}}
	first, second := slices.Build(in), slices.Build(in)
	if len(first.Omissions) != 2 || render(t, first) != render(t, second) || len(attrs) != 2 {
		t.Errorf("omissions %v, then %v", first.Omissions, second.Omissions)
	}
}

// Package apivalidation holds what the driver would publish against the API server's own
// validation, without an API server.
package apivalidation

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	conversion "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
)

// validate gives what the API server says about each object of a pool.
func validate(t *testing.T, r slices.Result) field.ErrorList {
	t.Helper()
	var errs field.ErrorList
	for _, object := range slicestest.Objects(r.Slices) {
		var in internal.ResourceSlice
		if err := conversion.Convert_v1_ResourceSlice_To_resource_ResourceSlice(object, &in, nil); err != nil {
			t.Fatal(err)
		}
		errs = append(errs, validation.ValidateResourceSlice(&in)...)
		// The rules that the API server has as declarations; both kinds report some of them.
		create := operation.Operation{Type: operation.Create, Options: map[string]bool{"DRAPartitionableDevicesType": false}}
		errs = append(errs, conversion.Validate_ResourceSlice(t.Context(), create, nil, object, nil)...)
	}
	return errs
}

func input(s inventory.Snapshot, vocabulary device.Vocabulary, options ...device.Option) slices.Input {
	a, _ := topology.Resolve(s, topology.Memory{})
	return slices.Input{Devices: device.FromSnapshot(s, a, options...), Topology: a, Vocabulary: vocabulary}
}

// The rules of this package catch something: a slice that breaks one is refused.
func TestValidationIsAlive(t *testing.T) {
	good := slices.Build(input(inventorytest.T4(), device.VocabularyFull))
	text := "13.0"
	good.Slices[0].Devices[0].Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: &text}
	if errs := validate(t, good); len(errs) != 1 || !strings.Contains(errs[0].Error(), "semver") {
		t.Errorf("a bad version gives %v", errs)
	}
}

func TestMachines(t *testing.T) {
	for name, s := range inventorytest.All() {
		for _, vocabulary := range []device.Vocabulary{device.VocabularyFull, device.VocabularyMinimal} {
			for _, options := range [][]device.Option{nil, {device.WithLists()}} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, vocabulary, len(options)), func(t *testing.T) {
					r := slices.Build(input(s, vocabulary, options...))
					if errs := validate(t, r); len(errs) > 0 || len(r.Omissions) > 0 || r.Count() != len(s.GPUs) {
						t.Errorf("%d devices, omissions %v, errors %v", r.Count(), r.Omissions, errs)
					}
				})
			}
		}
	}
}

// Pools of 1 to 64 GPUs are valid, with and without a taint on each device.
func TestSizes(t *testing.T) {
	taint := []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	for n := 1; n <= 64; n++ {
		s := inventorytest.New().Add(inventorytest.Board{LinkVersion: 4, LinkMBps: 26562}, n).Switch(0, n, 18).Snapshot
		in := input(s, device.VocabularyFull, device.WithLists())
		for _, tainted := range []bool{false, true} {
			if tainted {
				in.Taints = map[string][]resourceapi.DeviceTaint{}
				for _, d := range in.Devices {
					in.Taints[d.Name()] = taint
				}
			}
			r := slices.Build(in)
			if errs := validate(t, r); len(errs) > 0 || r.Count() != n || len(r.Slices) != 1 {
				t.Errorf("%d GPUs, tainted %t: %d devices in %d slices, errors %v", n, tainted, r.Count(), len(r.Slices), errs)
			}
		}
	}
	if errs := validate(t, slices.Build(slices.Input{})); len(errs) > 0 {
		t.Errorf("empty pool: %v", errs)
	}
}

// Boards that answer nonsense never make a slice invalid.
func TestOddValues(t *testing.T) {
	texts := []string{"", strings.Repeat("N", 64), strings.Repeat("N", 95), strings.Repeat("ü", 40), "\xff\x00", "a\nb", "580.105.08-custom", "1.2.3.4", "v0"}
	for _, text := range texts {
		s := inventorytest.GB200Tray()
		minus := -1
		for i := range s.GPUs {
			g := &s.GPUs[i]
			g.ProductName, g.Brand, g.Architecture, g.AddressingMode, g.Serial, g.PCIeRoot = text, text, text, text, text, text
			g.Fabric.ClusterUUID, g.Fabric.CliqueID, g.NUMANode, g.MemoryBytes = text, 1<<32-1, &minus, 1<<64-1
			g.PCI.Domain = 0xffffffff
			g.PCI.Bus = uint8(i)
		}
		s.Driver.Version, s.Driver.CUDAMajor = text, 1<<62
		if r := slices.Build(input(s, device.VocabularyFull, device.WithLists())); r.Count() != 4 {
			t.Errorf("%q: %d devices", text, r.Count())
		} else if errs := validate(t, r); len(errs) > 0 {
			t.Errorf("%q: %v", text, errs)
		}
	}
}

// Whatever passes the driver's own check of an attribute, the API server takes.
func TestOwnChecksAreAsStrict(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(rapid.StringN(0, 70, 80), rapid.StringMatching(`[0-9]{1,3}(\.[0-9]{1,3}){0,3}([-+][0-9A-Za-z.-]{0,9})?`)).Draw(rt, "text")
		name := rapid.OneOf(rapid.StringMatching(`([a-z.-]{0,9}/)?[A-Za-z_][A-Za-z0-9_]{0,33}`), rapid.StringN(0, 8, 16)).Draw(rt, "name")
		version, verr := device.Version(text)
		value := rapid.SampledFrom([]resourceapi.DeviceAttribute{
			{StringValue: &text},
			{VersionValue: &text},
			{VersionValue: &version},
			{StringValues: []string{text, "x"}},
			{VersionValues: []string{"1.2.3", text}},
			{},
		}).Draw(rt, "value")
		if value.VersionValue == &version && verr == nil {
			if err := device.CheckAttribute("version", value); err != nil {
				rt.Fatalf("Version(%q) gives what the check refuses: %v", text, err)
			}
		}
		if device.CheckAttribute(resourceapi.QualifiedName(name), value) != nil {
			return
		}
		d := resourceapi.Device{Name: "gpu", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{resourceapi.QualifiedName(name): value}}
		if errs := validate(t, slices.Result{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{d}}}}); len(errs) > 0 {
			rt.Fatalf("%q = %v passes here but not there: %v", name, value, errs)
		}
	})
}

// rogue publishes whatever it is told to.
type rogue struct {
	device.GPU
	published resourceapi.Device
}

func (r rogue) Name() string              { return r.published.Name }
func (r rogue) Identity() device.Identity { return device.Identity{PCI: pci.Address{Bus: 0xee}} }
func (r rogue) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	return r.published, nil
}

// What the driver lets through, the API server takes: each rule that a device can break is
// broken once, and the pool stays valid with the good devices in it.
func TestRogueDevices(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	counters := map[string]resourceapi.Counter{"slot": {Value: resource.MustParse("1")}}
	uses := func(sets ...string) (out []resourceapi.DeviceCounterConsumption) {
		for _, s := range sets {
			out = append(out, resourceapi.DeviceCounterConsumption{CounterSet: s, Counters: counters})
		}
		return out
	}
	attributes := func(n int, prefix string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for i := range n {
			out[resourceapi.QualifiedName(fmt.Sprintf("%s%d", prefix, i))] = text("x")
		}
		return out
	}
	list := attributes(1, "list")
	list["list0"] = resourceapi.DeviceAttribute{StringValues: make([]string, 60)}
	both := attributes(1, "a")
	yes := true
	both["a0"] = resourceapi.DeviceAttribute{StringValue: both["a0"].StringValue, BoolValue: &yes}
	good := input(inventorytest.T4(), device.VocabularyFull)
	good.Counters = []resourceapi.CounterSet{{Name: "gpu-a", Counters: counters}, {Name: "gpu-b", Counters: counters}, {Name: "gpu-c", Counters: counters}, {Name: "Bad_", Counters: counters}, {Name: "gpu-none"}}
	var taints []resourceapi.DeviceTaint
	for i := range 20 {
		taints = append(taints, resourceapi.DeviceTaint{Key: fmt.Sprintf("gpu.nvidia.com/t%d", i), Effect: resourceapi.DeviceTaintEffectNone})
	}
	taints = append(taints, resourceapi.DeviceTaint{Key: "a b"}, resourceapi.DeviceTaint{Key: "x", Value: "_", Effect: "Bad"})
	for name, d := range map[string]resourceapi.Device{
		"name":          {Name: "A.b"},
		"name twice":    {Name: good.Devices[0].Name()},
		"attributes":    {Name: "rogue", Attributes: attributes(40, "a")},
		"names":         {Name: "rogue", Attributes: attributes(3, "a-")},
		"long names":    {Name: "rogue", Attributes: attributes(3, strings.Repeat("a", 32))},
		"domains":       {Name: "rogue", Attributes: attributes(3, "-x/a")},
		"values":        {Name: "rogue", Attributes: list},
		"two values":    {Name: "rogue", Attributes: both},
		"unknown set":   {Name: "rogue", ConsumesCounters: uses("gpu-x")},
		"three sets":    {Name: "rogue", ConsumesCounters: uses("gpu-a", "gpu-b", "gpu-c")},
		"bad set":       {Name: "rogue", ConsumesCounters: uses("Bad_")},
		"two good sets": {Name: "rogue", ConsumesCounters: uses("gpu-a", "gpu-b")},
	} {
		t.Run(name, func(t *testing.T) {
			in := good
			in.Devices = append(in.Devices[:4:4], rogue{published: d})
			in.Taints = map[string][]resourceapi.DeviceTaint{good.Devices[0].Name(): taints}
			r := slices.Build(in)
			if errs := validate(t, r); len(errs) > 0 || r.Count() < 4 || len(r.Omissions) == 0 {
				t.Errorf("%d devices, omissions %v, errors %v", r.Count(), r.Omissions, errs)
			}
		})
	}
}

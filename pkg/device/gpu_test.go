package device_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

func devices(s inventory.Snapshot, options ...device.Option) []device.Device {
	a, _ := topology.Resolve(s, topology.Memory{})
	return device.FromSnapshot(s, a, options...)
}

// show renders published values as "type value", for comparing.
func show(d resourceapi.Device) map[string]string {
	out := map[string]string{}
	for name, v := range d.Attributes {
		text, _ := json.Marshal(v)
		out[string(name)] = string(text)
	}
	for name, v := range d.Capacity {
		out[string(name)] = v.Value.String()
	}
	return out
}

func TestPublish(t *testing.T) {
	s := inventorytest.HGXH100()
	got, omitted := devices(s)[0].Publish(device.VocabularyFull)
	domain := got.Attributes["nvlinkDomain"].StringValue
	if got.Name != "gpu-0000-07-00-0" || len(omitted) != 0 || domain == nil {
		t.Fatalf("device %q, omissions %v", got.Name, omitted)
	}
	want := map[string]string{
		"type": `{"string":"gpu"}`, "uuid": `{"string":"GPU-000000a0-0000-4000-8000-000000000000"}`,
		"productName": `{"string":"NVIDIA H100 80GB HBM3"}`, "brand": `{"string":"Nvidia"}`, "architecture": `{"string":"Hopper"}`,
		"cudaComputeCapability": `{"version":"9.0.0"}`, "driverVersion": `{"version":"580.95.5"}`, "cudaDriverVersion": `{"version":"13.0.0"}`,
		"addressingMode": `{"string":"HMM"}`, "serial": `{"string":"1650220000000"}`, "eccEnabled": `{"bool":true}`,
		"nvlinkDomain": `{"string":"` + *domain + `"}`, "nvlinkDomainSize": `{"int":8}`, "nvlinkLinks": `{"int":18}`,
		"nvlinkBandwidth": `{"int":478116}`, "nvlinkVersion": `{"int":4}`,
		"resource.kubernetes.io/pciBusID": `{"string":"0000:07:00.0"}`, "resource.kubernetes.io/pcieRoot": `{"string":"pci0000:06"}`,
		"resource.kubernetes.io/numaNode": `{"int":0}`, "memory": "80Gi",
	}
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestPublishMinimal(t *testing.T) {
	got, _ := devices(inventorytest.HGXH100())[0].Publish(device.VocabularyMinimal)
	if diff := cmp.Diff([]string{"memory", "nvlinkDomain", "productName", "type", "uuid"}, slices.Sorted(maps.Keys(show(got)))); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestPublishLists(t *testing.T) {
	got, omitted := devices(inventorytest.CubeMesh(), device.WithLists())[0].Publish(device.VocabularyFull)
	if cliques := got.Attributes["nvlinkCliques"].StringValues; len(cliques) != 2 || len(omitted) != 0 {
		t.Errorf("cliques %v, omissions %v", cliques, omitted)
	}
	if numa := got.Attributes["resource.kubernetes.io/numaNode"].IntValues; !slices.Equal(numa, []int64{0}) {
		t.Errorf("numaNode %v", numa)
	}
}

func TestPublishReportsCappedCliques(t *testing.T) {
	s := inventorytest.T4()
	at := s.GPUs[0].PCI
	a := topology.Assignment{GPUs: map[pci.Address]topology.Placement{at: {Cliques: []string{"a"}, CliquesOmitted: 3}}}
	_, omitted := device.FromSnapshot(s, a, device.WithLists())[0].Publish(device.VocabularyFull)
	want := []device.Omission{{Device: "gpu-0000-07-00-0", Name: "nvlinkCliques", Reason: "3 more NVLink cliques than the 8 that are published"}}
	if diff := cmp.Diff(want, omitted); diff != "" {
		t.Error(diff)
	}
}

func TestPublishFabric(t *testing.T) {
	got, _ := devices(inventorytest.GB200Tray())[0].Publish(device.VocabularyFull)
	shown := show(got)
	want := `{"string":"` + inventorytest.ClusterUUID + `.7"}`
	if shown["nvlinkDomain"] != want || shown["fabricCliqueID"] != `{"int":7}` || got.Name != "gpu-0008-01-00-0" {
		t.Errorf("%s: domain %s, clique %s", got.Name, shown["nvlinkDomain"], shown["fabricCliqueID"])
	}
	// A cluster of zeros, and one that is not complete, are not published.
	for _, f := range []inventory.Fabric{
		{State: inventory.FabricCompleted, Healthy: true, ClusterUUID: "00000000-0000-0000-0000-000000000000"},
		{State: inventory.FabricInProgress, ClusterUUID: inventorytest.ClusterUUID},
	} {
		s := inventorytest.GB200Tray()
		s.GPUs[0].Fabric = f
		got, _ := devices(s)[0].Publish(device.VocabularyFull)
		if _, ok := got.Attributes["fabricClusterUUID"]; ok {
			t.Errorf("fabric %+v is published", f)
		}
	}
}

// Odd values of a sick or strange board: what cannot be published is left out and reported,
// what is not known is left out, and nothing panics.
func TestPublishOddValues(t *testing.T) {
	s := inventorytest.T4()
	g := &s.GPUs[0]
	minus := -1
	g.ProductName, g.Serial, g.MemoryBytes, g.NUMANode, g.ECCEnabled, g.PCIeRoot = strings.Repeat("N", 95), "\x00\x01", 0, &minus, nil, ""
	g.ComputeMajor, g.Brand, g.Architecture, g.AddressingMode = 0, "", "", ""
	s.Driver = inventory.Driver{Present: true, Version: "custom"}
	s.GPUs[1].MemoryBytes = 1 << 63
	got, omitted := devices(s)[0].Publish(device.VocabularyFull)
	if diff := cmp.Diff([]string{"resource.kubernetes.io/pciBusID", "type", "uuid"}, slices.Sorted(maps.Keys(show(got)))); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	var names []string
	for _, o := range omitted {
		names = append(names, o.Name)
		if o.Device != got.Name || o.Reason == "" || o.Value == "" {
			t.Errorf("omission %+v", o)
		}
	}
	if diff := cmp.Diff([]string{"productName", "driverVersion", "serial"}, names); diff != "" {
		t.Errorf("omitted (-want +got):\n%s", diff)
	}
	if _, omitted := devices(s)[1].Publish(device.VocabularyFull); len(omitted) != 2 || omitted[1].Name != "memory" {
		t.Errorf("too much memory: %v", omitted)
	}
	// The minimal vocabulary does not complain about what it does not have.
	if _, omitted := devices(s)[0].Publish(device.VocabularyMinimal); len(omitted) != 1 || omitted[0].Name != "productName" {
		t.Errorf("minimal vocabulary omits %v", omitted)
	}
}

func TestGPU(t *testing.T) {
	s := inventorytest.MIG(inventorytest.HGXH100(), inventorytest.HGXH100().GPUs[1].PCI)
	s.GPUs[0].Minor = 5
	all := devices(s)
	if len(all) != 7 {
		t.Fatalf("%d devices, want 7: a GPU in MIG mode is none", len(all))
	}
	g := all[0].(device.GPU)
	want := device.Identity{PCI: s.GPUs[0].PCI, GPUUUID: s.GPUs[0].UUID}
	if g.Identity() != want || g.Kind() != device.KindGPU || g.UUID() != want.GPUUUID || g.Minor() != 5 || g.Node() != "nvidia5" ||
		g.Name() != device.GPUName(want.PCI) || g.Hardware().UUID != want.GPUUUID {
		t.Errorf("got %+v", g)
	}
	partition := device.Identity{PCI: want.PCI, GPUUUID: want.GPUUUID, Partition: "mig-1g-10gb-0"}
	if !g.Overlaps(want) || !g.Overlaps(partition) || g.Overlaps(all[1].Identity()) {
		t.Error("a GPU overlaps with itself and its partitions, and with nothing else")
	}
}

func TestUnstableNumbersAreNotPublished(t *testing.T) {
	s := inventorytest.HGXH100()
	before, _ := devices(s)[3].Publish(device.VocabularyFull)
	s.GPUs[3].Index, s.GPUs[3].Minor = 77, 78
	after, _ := devices(s)[3].Publish(device.VocabularyFull)
	if diff := cmp.Diff(show(before), show(after)); diff != "" {
		t.Error(diff)
	}
}

// example is a machine whose first GPU has every attribute, with the examples as values.
func example(options ...device.Option) resourceapi.Device {
	s := inventorytest.GB200Tray()
	g := &s.GPUs[0]
	g.UUID, g.ProductName, g.Architecture = "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d", "NVIDIA H100 80GB HBM3", "Hopper"
	g.Serial, g.PCIeRoot, g.ComputeMajor, g.PCI = "1650220012345", "pci0000:16", 9, pci.Address{Bus: 0x1a}
	for i := range s.GPUs[1:] {
		s.GPUs[1+i].NVLink.Peers[0] = g.PCI
	}
	d, omitted := devices(s, options...)[0].Publish(device.VocabularyFull)
	if len(omitted) > 0 {
		panic(fmt.Sprint(omitted))
	}
	return d
}

// examples are a device of each kind with everything that its kind can have.
func examples(t testing.TB, options ...device.Option) map[device.Kind]resourceapi.Device {
	out := map[device.Kind]resourceapi.Device{device.KindGPU: example(options...), device.KindMIG: exampleMIG(t, options...)}
	// What a shared device has more is the same for all kinds.
	d, _ := sharedGPU(device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 4}, 80<<30)
	shared, _ := d.Publish(device.VocabularyFull)
	for _, d := range out {
		d.Attributes["sharingEnforcement"] = shared.Attributes["sharingEnforcement"]
		d.Capacity["shares"] = shared.Capacity["shares"]
	}
	return out
}

func TestEveryPublishedValueIsDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range device.Attributes() {
		if seen[a.Name] || a.Meaning == "" || a.Source == "" || a.Absent == "" || a.Example == "" || len(a.Kinds) == 0 {
			t.Errorf("description of %s is double or incomplete: %+v", a.Name, a)
		}
		seen[a.Name] = true
	}
	for kind, d := range examples(t, device.WithLists()) {
		d.Attributes["resource.kubernetes.io/numaNode"] = example().Attributes["resource.kubernetes.io/numaNode"]
		checkDescribed(t, kind, d)
	}
	for kind, d := range examples(t) {
		for _, a := range device.Attributes() {
			_, published := show(d)[a.Name]
			if want := slices.Contains(a.Kinds, kind) && a.Type != device.TypeStrings; published != want {
				t.Errorf("%s: a device of kind %s publishes it: %t", a.Name, kind, published)
			}
		}
	}
	minimal, _ := devices(inventorytest.GB200Tray())[0].Publish(device.VocabularyMinimal)
	for name := range show(minimal) {
		if !device.InMinimal(name) {
			t.Errorf("%s is published in the minimal vocabulary", name)
		}
	}
}

// checkDescribed holds what a device of a kind publishes against the descriptions.
func checkDescribed(t *testing.T, kind device.Kind, d resourceapi.Device) {
	t.Helper()
	described := map[string]device.Attribute{}
	for _, a := range device.Attributes() {
		if slices.Contains(a.Kinds, kind) {
			described[a.Name] = a
		}
	}
	published := show(d)
	types := map[device.AttributeType]string{
		device.TypeString: `{"string":`, device.TypeInt: `{"int":`, device.TypeBool: `{"bool":`,
		device.TypeVersion: `{"version":`, device.TypeStrings: `{"strings":`, device.TypeQuantity: ``,
	}
	for name, value := range published {
		if a, ok := described[name]; !ok || !strings.HasPrefix(value, types[a.Type]) {
			t.Errorf("%s = %s is described as %+v", name, value, a)
		}
	}
	for name, a := range described {
		if _, ok := published[name]; !ok {
			t.Errorf("%s is described but a device of kind %s with everything does not publish it", name, kind)
		}
		if _, isCapacity := d.Capacity[resourceapi.QualifiedName(name)]; isCapacity != a.Capacity {
			t.Errorf("%s: described as capacity %t", name, a.Capacity)
		}
		if a.Minimal != device.InMinimal(name) {
			t.Errorf("%s: described as minimal %t", name, a.Minimal)
		}
	}
}

// The expressions of the reference page compile, match the example, and do not fail on a GPU
// that has none of the values.
func TestExpressions(t *testing.T) {
	const driver = "gpu.example.com"
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	full, lists := examples(t), examples(t, device.WithLists())
	for _, a := range device.Attributes() {
		t.Run(a.Name, func(t *testing.T) {
			// Another driver name must be put in everywhere.
			if strings.Contains(a.Selector(driver), "gpu.nvidia.com") {
				t.Errorf("%s still names the default driver", a.Selector(driver))
			}
			compiled := compiler.CompileCELExpression(a.Selector(driver), cel.Options{})
			if compiled.Error != nil {
				t.Fatalf("%s: %v", a.Expression, compiled.Error)
			}
			if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
				t.Errorf("%s: the API server refuses a cost of %d, over %d", a.Expression, compiled.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost))
			}
			d := full[a.Kinds[0]]
			if a.Type == device.TypeStrings {
				d = lists[a.Kinds[0]]
			}
			in := cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity}
			if ok, _, err := compiled.DeviceMatches(t.Context(), in); !ok || err != nil {
				t.Errorf("%s does not match %v: %v", a.Expression, show(d)[a.Name], err)
			}
			kind := "other"
			bare := cel.Device{Driver: driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}}
			if ok, _, err := compiled.DeviceMatches(t.Context(), bare); ok || err != nil {
				t.Errorf("%s on a device without it: %t, %v", a.Expression, ok, err)
			}
		})
	}
}

// The API allows 32 attributes and capacities and 48 values. Two places stay free for what is
// added on a whole GPU: "sharingEnforcement" and the capacity "shares" take two more.
func TestWorstCaseLeavesRoom(t *testing.T) {
	d := example(device.WithLists())
	values := len(d.Capacity)
	for _, v := range d.Attributes {
		values += device.CountValues(v)
	}
	values += topology.MaxCliques - len(d.Attributes["nvlinkCliques"].StringValues)
	const sharing, free = 2, 2
	if n := len(d.Attributes) + len(d.Capacity) + sharing + free; n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%d attributes and capacities with room to spare", n)
	}
	if values+sharing+free > resourceapi.ResourceSliceMaxAttributeValuesPerDevice {
		t.Errorf("%d values", values)
	}
}

func BenchmarkPublish(b *testing.B) {
	d := devices(inventorytest.HGXH100())[0]
	for b.Loop() {
		d.Publish(device.VocabularyFull)
	}
}

package offer_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	draconversion "k8s.io/dynamic-resource-allocation/api/v1beta1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/topology"
)

// NVIDIA's exporter of metrics (dcgm-exporter) looks devices up in slices of resource/v1beta1: by "type" it
// takes "uuid" of a "gpu", and "parentUUID", "profile" and, where there is one, "uuid" of a "mig"; it knows no
// other type. The exporter finds every device that a node offers, whatever is published of it.
func TestExportersFindEveryDevice(t *testing.T) {
	for _, vocabulary := range []device.Vocabulary{device.VocabularyFull, device.VocabularyMinimal} {
		for _, preset := range migtest.Presets() {
			t.Run(string(vocabulary)+" "+preset, func(t *testing.T) {
				s := migtest.Snapshot(t, preset)
				made := offer.Settings{Pool: "node-1", Vocabulary: vocabulary, Partitions: true}.Make(s, topology.Assignment{}, offer.Conditions{})
				want := map[string]string{}
				for _, d := range made.Devices {
					switch d := d.(type) {
					case device.GPU:
						want[d.Name()] = "gpu " + d.UUID()
					case device.MIG:
						want[d.Name()] = fmt.Sprintf("mig  of %s as %s", d.Parent().UUID, d.Partition().Profile.Name)
					}
				}
				got := map[string]string{}
				for _, slice := range made.Resources.Pools["node-1"].Slices {
					exporterReads(t, slice.Devices, got)
				}
				if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
					t.Errorf("%d devices (-offered +found):\n%s", len(got), diff)
				}
			})
		}
	}
}

// A partition that is there whoever uses it has a UUID of its own for exporters, too.
func TestExportersFindStaticPartitions(t *testing.T) {
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:1]
	s.GPUs[0] = migtest.With(t, s.GPUs[0], false, "1g.10gb:0")
	made := offer.Settings{Pool: "node-1", Vocabulary: device.VocabularyFull, Partitions: true, NotOnDemand: true}.Make(s, topology.Assignment{}, offer.Conditions{})
	got := map[string]string{}
	for _, slice := range made.Resources.Pools["node-1"].Slices {
		exporterReads(t, slice.Devices, got)
	}
	uuid := s.GPUs[0].MIG.Instances[0].Compute[0].UUID
	name := device.GPUName(s.GPUs[0].PCI) + "-mig-1g-10gb-0"
	want := map[string]string{name: fmt.Sprintf("mig %s of %s as 1g.10gb", uuid, s.GPUs[0].UUID)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// exporterReads notes what the exporter finds of devices, as the API server would serve them in that version.
func exporterReads(t *testing.T, devices []resourceapi.Device, found map[string]string) {
	t.Helper()
	served := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", Pool: resourceapi.ResourcePool{Name: "node-1"}, Devices: devices}}
	var slice resourcev1beta1.ResourceSlice
	if err := draconversion.Convert_v1_ResourceSlice_To_v1beta1_ResourceSlice(served, &slice, nil); err != nil {
		t.Fatal(err)
	}
	for _, d := range slice.Spec.Devices {
		text := func(name resourcev1beta1.QualifiedName) string {
			if d.Basic == nil || d.Basic.Attributes[name].StringValue == nil {
				return ""
			}
			return *d.Basic.Attributes[name].StringValue
		}
		switch text("type") {
		case "gpu":
			found[d.Name] = "gpu " + text("uuid")
		case "mig":
			found[d.Name] = fmt.Sprintf("mig %s of %s as %s", text("uuid"), text("parentUUID"), text("profile"))
		default:
			t.Errorf("device %s is of type %q, which the exporter does not know", d.Name, text("type"))
		}
	}
}

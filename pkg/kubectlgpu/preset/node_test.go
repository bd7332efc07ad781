package preset_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// kinds sums up what a node publishes: "4 gpu, 2 mig 1g.10gb, 1 gpu shared", in order of appearance.
func kinds(all []*resourceapi.ResourceSlice) string {
	var order []string
	count := map[string]int{}
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			kind := *d.Attributes["type"].StringValue
			if p := d.Attributes["profile"].StringValue; p != nil {
				kind += " " + *p
			}
			if d.AllowMultipleAllocations != nil {
				kind += " shared"
			}
			if count[kind] == 0 {
				order = append(order, kind)
			}
			count[kind]++
		}
	}
	var words []string
	for _, kind := range order {
		words = append(words, fmt.Sprintf("%d %s", count[kind], kind))
	}
	return strings.Join(words, ", ")
}

func entries(t *testing.T, text string) []selection.Entry {
	t.Helper()
	all, err := selection.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func declared(t *testing.T, text string) []shares.Declaration {
	t.Helper()
	all, err := shares.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const layouts = `
version: v1
mig-configs:
  small: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  mixed:
  - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 2}}
  - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: false}
  too-much: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 3}}]
  one: [{devices: [7], mig-enabled: true, mig-devices: {7g.80gb: 1}}]
`

func file(t *testing.T) layout.File {
	t.Helper()
	f, err := layout.Parse([]byte(layouts))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Each setting does to what a node of a preset publishes what it does to a real node.
func TestSettings(t *testing.T) {
	onDemand := func(s *preset.Settings) { s.Partitions = true }
	static := func(s *preset.Settings) { s.Partitions, s.NotOnDemand = true, true }
	laidOut := func(name string) func(*preset.Settings) {
		return func(s *preset.Settings) { s.Partitions, s.Layouts, s.Layout = true, file(t), name }
	}
	for name, tc := range map[string]struct {
		machine string
		set     func(*preset.Settings)
		want    string
	}{
		"default":            {"hgx-h100-8", func(*preset.Settings) {}, "8 gpu"},
		"static, none there": {"hgx-h100-8", static, "8 gpu"},
		"excluded by product": {"mixed", func(s *preset.Settings) {
			s.Exclude = entries(t, `[{products: ["*H100*"]}]`)
		}, "4 gpu"},
		"included by address": {"hgx-h100-8", func(s *preset.Settings) {
			s.Include = entries(t, `[{pciAddresses: ["0000:1b:00.0", "0000:43:00.0"]}]`)
		}, "2 gpu"},
		"excluded elsewhere": {"hgx-h100-8", func(s *preset.Settings) {
			s.Exclude = entries(t, `[{nodes: [pool-b-*], products: ["*"]}]`)
		}, "8 gpu"},
		"all excluded": {"hgx-h100-8", func(s *preset.Settings) {
			s.Exclude = entries(t, `[{nodes: [pool-a-*], products: ["*"]}]`)
		}, ""},
		"shares": {"hgx-h100-8", func(s *preset.Settings) {
			s.Shares = declared(t, `[{enforcement: none, replicas: 4, devices: {indices: [0, 1]}}]`)
		}, "2 gpu shared, 6 gpu"},
		"shares elsewhere": {"hgx-h100-8", func(s *preset.Settings) {
			s.Shares = declared(t, `[{nodes: [pool-b-*], enforcement: none, replicas: 4}]`)
		}, "8 gpu"},
		"shares and partitions": {"hgx-h100-8", func(s *preset.Settings) {
			onDemand(s)
			s.Include = entries(t, `[{pciAddresses: ["0000:1b:00.0"]}]`)
			s.Shares = declared(t, `[{enforcement: none, devices: {indices: [0], profiles: ["1g.10gb"]}}]`)
		}, "7 mig 1g.10gb shared, 7 mig 1g.10gb+me, 4 mig 1g.20gb, 3 mig 2g.20gb, 2 mig 3g.40gb, 1 mig 4g.40gb, 1 mig 7g.80gb, 1 gpu"},
		"shares and partitions before 1.37": {"hgx-h100-8", func(s *preset.Settings) {
			onDemand(s)
			s.Release = version.MajorMinor(1, 36)
			s.Shares = declared(t, `[{enforcement: none, devices: {profiles: ["*"]}}]`)
		}, "8 gpu"},
		"MIG mode that needs a reset": {"a30-4", onDemand, "4 gpu"},
		"a layout":                    {"hgx-h100-8", laidOut("small"), "56 mig 1g.10gb"},
		"a layout of one GPU":         {"hgx-h100-8", laidOut("mixed"), "2 mig 1g.10gb, 1 mig 3g.40gb, 7 gpu"},
		"a layout that is impossible": {"hgx-h100-8", laidOut("too-much"), ""},
		"a layout for no such board":  {"t4-4", laidOut("small"), "4 gpu"},
		"a layout beside on demand": {"hgx-h100-8", func(s *preset.Settings) {
			laidOut("one")(s)
			s.Exclude = entries(t, `[{pciAddresses: ["0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0", "0000:9d:00.0", "0000:c3:00.0"]}]`)
		}, "2 mig 7g.80gb, 7 mig 1g.10gb, 7 mig 1g.10gb+me, 4 mig 1g.20gb, 3 mig 2g.20gb, 2 mig 3g.40gb, 1 mig 4g.40gb, 1 gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(false, false)
			tc.set(&s)
			got := kinds(publishes(t, get(t, tc.machine), "pool-a-1", s))
			if got != tc.want {
				t.Errorf("publishes %q, want %q", got, tc.want)
			}
		})
	}
}

// Counters are put beside the devices of a cluster before 1.35, into slices of their own after.
func TestRelease(t *testing.T) {
	s := settings(true, false)
	for minor, want := range map[uint]bool{34: true, 35: false, 37: false} {
		s.Release = version.MajorMinor(1, minor)
		mixed := false
		for _, slice := range publishes(t, get(t, "hgx-h100-8"), "n", s) {
			mixed = mixed || len(slice.Spec.SharedCounters) > 0 && len(slice.Spec.Devices) > 0
		}
		if mixed != want {
			t.Errorf("1.%d: counters beside devices: %t", minor, mixed)
		}
	}
}

// What is cut keeps its peers' NVLink domain, as on a node that knew its GPUs before they were cut.
func TestLayoutKeepsDomains(t *testing.T) {
	domains := func(s preset.Settings) map[string]int {
		out := map[string]int{}
		for _, slice := range publishes(t, get(t, "hgx-h100-8"), "n", s) {
			for _, d := range slice.Spec.Devices {
				if v := d.Attributes["nvlinkDomain"].StringValue; v != nil {
					out[*v]++
				}
			}
		}
		return out
	}
	cut := settings(true, false)
	cut.NotOnDemand, cut.Layouts, cut.Layout = true, file(t), "one"
	whole, less := domains(settings(false, false)), domains(cut)
	if len(whole) != 1 || len(less) != 1 {
		t.Fatalf("domains %v and %v", whole, less)
	}
	for name, n := range whole {
		if n != 8 || less[name] != 7 {
			t.Errorf("%d GPUs, %d with one that is cut: %v", n, less[name], less)
		}
	}
}

func TestUnknownLayout(t *testing.T) {
	s := settings(true, false)
	s.Layouts, s.Layout = file(t), "large"
	_, err := get(t, "hgx-h100-8").State(2, s)
	var unknown *layout.UnknownConfigError
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), `no MIG layout "large": the file has mixed, one, small, too-much`) {
		t.Errorf("%v", err)
	}
}

// Partitions of a layout have identities of their own, the same each time.
func TestPartitionsHaveIdentities(t *testing.T) {
	s := settings(true, false)
	s.Layouts, s.Layout = file(t), "small"
	seen := map[string]bool{}
	for _, node := range []string{"a", "b"} {
		for _, slice := range publishes(t, get(t, "hgx-h100-8"), node, s) {
			for _, d := range slice.Spec.Devices {
				seen[*d.Attributes["uuid"].StringValue] = true
			}
		}
	}
	if len(seen) != 2*56 {
		t.Errorf("%d UUIDs of 112 partitions", len(seen))
	}
	if diff := cmp.Diff(publishes(t, get(t, "hgx-h100-8"), "a", s), publishes(t, get(t, "hgx-h100-8"), "a", s)); diff != "" {
		t.Error(diff)
	}
}

// The classes give out what is whole and what is shared apart, under the driver's own name.
func TestClasses(t *testing.T) {
	got := map[string]string{}
	for _, c := range preset.Classes("gpu.example.com") {
		got[c.Name] = c.Spec.Selectors[0].CEL.Expression
	}
	of := `device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].?type.orValue("") `
	want := map[string]string{
		"gpu.nvidia.com":        of + `== "gpu" && !device.allowMultipleAllocations`,
		"mig.nvidia.com":        of + `== "mig" && !device.allowMultipleAllocations`,
		"shared.gpu.nvidia.com": of + `in ["gpu", "mig"] && device.allowMultipleAllocations`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

// The name of the driver is in names and attributes of what is published.
func TestDriverName(t *testing.T) {
	s := settings(false, false)
	s.DriverName = "gpu.example.com"
	for _, slice := range publishes(t, get(t, "t4-4"), "n", s) {
		if slice.Spec.Driver != s.DriverName || !strings.Contains(slice.Name, s.DriverName) {
			t.Errorf("slice %s of %s", slice.Name, slice.Spec.Driver)
		}
	}
	if s.Vocabulary != device.VocabularyFull {
		t.Error("the settings were changed")
	}
}

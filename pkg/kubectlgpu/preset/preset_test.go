package preset_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/topology"
)

func settings(partitions, lists bool) preset.Settings {
	return preset.Settings{DriverName: "gpu.nvidia.com", Settings: offer.Settings{Vocabulary: device.VocabularyFull, Partitions: partitions, Lists: lists}}
}

func get(t *testing.T, name string) preset.Machine {
	t.Helper()
	m, err := preset.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func publishes(t *testing.T, m preset.Machine, node string, s preset.Settings) []*resourceapi.ResourceSlice {
	t.Helper()
	made, err := m.Slices(node, s)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func cluster(t *testing.T, m preset.Machine, nodes int, s preset.Settings) *state.State {
	t.Helper()
	made, err := m.State(nodes, s)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// anonymous renders slices with what names a board taken out, and what is equal left equal.
func anonymous(t *testing.T, all []*resourceapi.ResourceSlice) string {
	t.Helper()
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	seen := map[string]bool{}
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID", "serial", "nvlinkDomain", "nvlinkCliques"} {
				v := d.Attributes[name]
				values := v.StringValues
				if v.StringValue != nil {
					values = append(values, *v.StringValue)
				}
				for _, value := range values {
					if !seen[value] {
						seen[value] = true
						names = append(names, `"`+value+`"`, fmt.Sprintf(`"%s %d"`, name, len(seen)))
					}
				}
			}
		}
	}
	return strings.NewReplacer(names...).Replace(string(data))
}

// A node that is only thought of publishes what the recorded one does, but for its identity.
func TestSlicesAreTheNodesOwn(t *testing.T) {
	for _, name := range preset.Names() {
		for _, s := range []preset.Settings{settings(false, false), settings(true, false), settings(false, true)} {
			if s.Partitions && !slices.Contains([]string{"hgx-h100-8", "mixed", "gb200-nvl72"}, name) {
				continue // Hundreds of devices each; these have what the others have.
			}
			m := get(t, name)
			assignment, _ := topology.Resolve(m.Snapshot, topology.Memory{})
			s.Pool = "node-7"
			real := preset.Objects("node-7", s.DriverName, s.Make(m.Snapshot, assignment, offer.Conditions{}))
			thought := publishes(t, m, "node-7", s)
			if len(thought) == 0 {
				t.Fatalf("%s: no slices", name)
			}
			if a, b := anonymous(t, real), anonymous(t, thought); a != b {
				t.Errorf("%s, partitions %t, lists %t (-real +thought):\n%s", name, s.Partitions, s.Lists, cmp.Diff(a, b))
			}
		}
	}
}

// Nodes of one kind have boards and NVLink domains of their own, the same each time.
func TestNodesHaveIdentities(t *testing.T) {
	m := get(t, "two-islands")
	seen := map[string]int{}
	two := cluster(t, m, 2, settings(false, false))
	for _, slice := range two.Slices {
		for _, d := range slice.Spec.Devices {
			seen[*d.Attributes["uuid"].StringValue]++
			seen[*d.Attributes["serial"].StringValue]++
			seen[*d.Attributes["nvlinkDomain"].StringValue]++
		}
	}
	if len(seen) != 16+16+4 {
		t.Errorf("%d names of 16 boards with serial numbers in 4 domains", len(seen))
	}
	if diff := cmp.Diff(two, cluster(t, m, 2, settings(false, false))); diff != "" {
		t.Error(diff)
	}
	if m.Snapshot.GPUs[0].UUID != get(t, "two-islands").Snapshot.GPUs[0].UUID {
		t.Error("the recorded machine was changed")
	}
}

func TestUnknownPreset(t *testing.T) {
	if _, err := preset.Get("../preset"); err == nil || !strings.Contains(err.Error(), "hgx-h100-8") {
		t.Errorf("%v", err)
	}
}

func TestEncodeAndDecode(t *testing.T) {
	for _, name := range preset.Names() {
		m := get(t, name)
		data, err := preset.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := preset.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		if m.Description == "" || len(m.Snapshot.GPUs) == 0 {
			t.Errorf("%s says nothing", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"GPUs":[{}],"ProfilesOf":[0],"LinksOf":[0],"Profiles":[null],"Links":[null]}`))
	f.Add([]byte(`{"GPUs":[{}],"ProfilesOf":[1],"LinksOf":[-1],"Profiles":[null],"Links":[null]}`))
	f.Add([]byte(`{"GPUs":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := preset.Decode(data)
		if err != nil {
			return
		}
		if _, err := preset.Encode(m); err != nil {
			t.Error(err)
		}
	})
}

package deviceplugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

const usual = `
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: [envvar]
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
    - name: nvidia.com/mig-1g.10gb.me
      devices: all
      replicas: 2
`

func TestParse(t *testing.T) {
	have, err := Parse(usual)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		RenameByDefault: true, FailRequestsGreaterThanOne: true,
		Declarations: []shares.Declaration{
			{Enforcement: device.NotEnforced, Replicas: 4},
			{Enforcement: device.NotEnforced, Replicas: 2, Devices: shares.Filter{Profiles: []string{"1g.10gb+me"}}},
		},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

// one is a file with one resource of nvidia.com/gpu.
func one(way, rest string) string {
	return fmt.Sprintf(`{version: v1, sharing: {%s: {resources: [{name: nvidia.com/gpu, %s}]}}}`, way, rest)
}

func TestParseDeclarations(t *testing.T) {
	for text, want := range map[string][]shares.Declaration{
		"":                                nil,
		"version: v1":                     nil,
		"{version: v1, sharing: {}}":      nil,
		one("timeSlicing", "replicas: 1"): nil,
		one("mps", "replicas: 4"):         {{Enforcement: "mps", Replicas: 4, ThreadPercentage: new(25)}},
		one("mps", "replicas: 60"):        {{Enforcement: "mps", Replicas: 60, ThreadPercentage: new(1)}},
		one("timeSlicing", "replicas: 2, rename: gpu.x, devices: 2"): {
			{Enforcement: "none", Replicas: 2, Devices: shares.Filter{Indices: []int{0, 1}}},
		},
		one("timeSlicing", `replicas: 2, devices: ["0", "3"]`): {{Enforcement: "none", Replicas: 2, Devices: shares.Filter{Indices: []int{0, 3}}}},
		one("timeSlicing", `replicas: 2, devices: [GPU-1, MIG-2]`): {
			{Enforcement: "none", Replicas: 2, Devices: shares.Filter{UUIDs: []string{"GPU-1", "MIG-2"}}},
		},
		strings.Replace(one("timeSlicing", `replicas: 2`), "v1,", "v1, flags: {migStrategy: single},", 1): {
			{Enforcement: "none", Replicas: 2, Devices: shares.Filter{Profiles: []string{"*"}}},
		},
		strings.Replace(one("timeSlicing", `replicas: 2`), "v1,", "v1, flags: {migStrategy: mixed},", 1): {{Enforcement: "none", Replicas: 2}},
	} {
		have, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, have.Declarations); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string][]string{
		"[]":          {"not a configuration"},
		"version: v2": {"version", `"v2"`, `"v1"`},
		"{version: v1, flags: {migStrategy: some}}":                                                {"flags.migStrategy", `"some"`, "none, single, mixed"},
		"{version: v1, sharing: {timeSlice: {}}}":                                                  {"sharing", "timeSlice"},
		one("timeSlicing", "replica: 4"):                                                           {"replica"},
		one("timeSlicing", "replicas: 0"):                                                          {"sharing.timeSlicing.resources[0].replicas", "0", "1 to 128"},
		one("timeSlicing", "replicas: -1"):                                                         {"replicas", "-1"},
		one("mps", "replicas: 61"):                                                                 {"sharing.mps.resources[0]", "61", "2 to 60"},
		one("timeSlicing", "replicas: 2, devices: some"):                                           {"resources[0].devices", `"some"`, "all"},
		one("timeSlicing", "replicas: 2, devices: 0"):                                              {"devices: 0", "1 to 64"},
		one("timeSlicing", "replicas: 2, devices: []"):                                             {"devices: []"},
		one("timeSlicing", "replicas: 2, devices: {a: 1}"):                                         {"devices: {"},
		one("timeSlicing", `replicas: 2, devices: ["0:1"]`):                                        {`"0:1"`, "by UUID or profile"},
		one("timeSlicing", `replicas: 2, devices: ["0", GPU-1]`):                                   {"indices and UUIDs"},
		one("timeSlicing", `replicas: 2, devices: ["GPU-/"]`):                                      {"uuids", "GPU-/"},
		strings.Replace(one("timeSlicing", "replicas: 2"), "nvidia.com/gpu", "example.com/gpu", 1): {"resources[0].name", `"example.com/gpu"`, "nvidia.com/gpu"},
		strings.Replace(one("timeSlicing", "replicas: 2"), "nvidia.com/gpu", "nvidia.com/mig-", 1): {"resources[0].name"},
		`{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}, mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}}`: {"timeSlicing and mps"},
	} {
		_, err := Parse(text)
		if err == nil {
			t.Errorf("%s is taken", text)
			continue
		}
		for _, part := range says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", text, err, part)
			}
		}
	}
}

// Whatever the file has, what comes out is something that the driver can offer.
func FuzzParse(f *testing.F) {
	f.Add(usual)
	f.Add(one("mps", `replicas: 2, devices: ["0", "1"]`))
	f.Fuzz(func(t *testing.T, text string) {
		config, err := Parse(text)
		if err != nil {
			if err.Error() == "" || len(config.Declarations) > 0 {
				t.Fatalf("%q: %v, %v", text, config, err)
			}
			return
		}
		if err := shares.Validate(config.Declarations); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for _, d := range config.Declarations {
			if d.Replicas < 2 {
				t.Fatalf("%q: %+v", text, d)
			}
		}
	})
}

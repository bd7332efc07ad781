package process_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/test/process"
)

// thought is what kubectl gpu says that a node of a preset publishes, with a file of values.
func thought(t *testing.T, machine, values string, more ...string) []*resourceapi.ResourceSlice {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(path, []byte(values), 0o600))
	var out strings.Builder
	cmd := command.New("v0.0.0-test", command.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	cmd.SetArgs(append([]string{"slice-template", "--preset", machine, "--node-name", process.NodeName, "--values", path}, more...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	objects, err := state.Decode([]byte(out.String()))
	must(t, err)
	var all []*resourceapi.ResourceSlice
	for _, o := range objects {
		all = append(all, o.(*resourceapi.ResourceSlice))
	}
	return all
}

// anonymous renders the specs of slices, with what names a board replaced by its place, and without
// the pool's generation, which counts changes.
func anonymous(t *testing.T, all []*resourceapi.ResourceSlice) string {
	t.Helper()
	var specs []resourceapi.ResourceSliceSpec
	var names []string
	seen := map[string]bool{}
	for _, slice := range all {
		spec := *slice.Spec.DeepCopy()
		spec.Pool.Generation = 0
		specs = append(specs, spec)
		for _, d := range spec.Devices {
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID", "serial", "nvlinkDomain", "nvlinkCliques"} {
				values := d.Attributes[name].StringValues
				if v := d.Attributes[name].StringValue; v != nil {
					values = append(values, *v)
				}
				for _, v := range values {
					if !seen[v] {
						seen[v] = true
						names = append(names, `"`+v+`"`, fmt.Sprintf(`"%s %d"`, name, len(seen)))
					}
				}
			}
		}
	}
	text, err := json.MarshalIndent(specs, "", " ")
	must(t, err)
	return strings.NewReplacer(names...).Replace(string(text))
}

// slicesOf are the node's slices in the order of their names.
func slicesOf(t *testing.T, b *process.Bed) []*resourceapi.ResourceSlice {
	t.Helper()
	list, err := b.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var all []*resourceapi.ResourceSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	slices.SortFunc(all, func(x, y *resourceapi.ResourceSlice) int { return strings.Compare(x.Name, y.Name) })
	return all
}

// What kubectl gpu slice-template says of a kind of node is what the plugin publishes there, byte for
// byte but for the identity of the boards, for every value of the chart that changes it.
func TestSliceTemplateIsTheNodes(t *testing.T) {
	t.Parallel()
	layouts := filepath.Join(t.TempDir(), "layouts.yaml")
	must(t, os.WriteFile(layouts, []byte("version: v1\nmig-configs:\n  small:\n  - {devices: [0, 1], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}\n  - {devices: [2], mig-enabled: true, mig-devices: {7g.80gb: 1}}\n"), 0o600))
	for name, tc := range map[string]struct {
		machine, values string
		flags           []process.Setting
		more            []string
		release         string
	}{
		"defaults": {machine: "two-islands", values: "{}"},
		"vocabulary and lists": {
			machine: "dgx1-v100", values: "sliceVocabulary: minimal\nfeatureGates: {DRAListTypeAttributes: true}",
			flags: []process.Setting{process.Flag("slice-vocabulary", "minimal"), process.Flag("list-attributes", "true")},
		},
		"excluded GPUs": {
			machine: "mixed", values: "gpus: {exclude: [{products: ['*h100*']}, {nodes: [other], products: ['*']}]}",
			flags: []process.Setting{process.Flag("exclude-gpus", `[{"products":["*h100*"]},{"nodes":["other"],"products":["*"]}]`)},
		},
		"included GPUs": {
			machine: "two-islands", values: "gpus: {include: [{nodes: ['node-*'], pciAddresses: ['0000:25:00.0', '0000:61:00.0']}]}",
			flags: []process.Setting{process.Flag("include-gpus", `[{"nodes":["node-*"],"pciAddresses":["0000:25:00.0","0000:61:00.0"]}]`)},
		},
		"shares": {
			machine: "t4-4", values: "sharing:\n  devices: [{enforcement: cooperative, devices: {indices: [0]}}]\n  devicePluginConfig: '{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}}'\n",
			flags: []process.Setting{
				process.Flag("shared-devices", `[{"enforcement":"cooperative","devices":{"indices":[0]}}]`),
				process.Flag("device-plugin-config", "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}}"),
			},
		},
		"partitions": {
			machine: "hgx-h100-8", values: "migDevices: on-demand", flags: []process.Setting{process.Flag("mig-devices", "on-demand")},
		},
		"partitions in 1.34": {
			machine: "hgx-h100-8", values: "migDevices: on-demand", flags: []process.Setting{process.Flag("mig-devices", "on-demand")},
			more: []string{"--kubernetes-version", "1.34.2"}, release: "v1.34.2",
		},
		"shares of partitions": {
			machine: "hgx-h100-8", values: "migDevices: on-demand\nsharing: {devices: [{enforcement: none, replicas: 2, devices: {profiles: ['1g.10gb']}}]}",
			flags: []process.Setting{process.Flag("mig-devices", "on-demand"), process.Flag("shared-devices", `[{"enforcement":"none","replicas":2,"devices":{"profiles":["1g.10gb"]}}]`)},
		},
		"shares of partitions in 1.36": {
			machine: "hgx-h100-8", values: "migDevices: on-demand\nsharing: {devices: [{enforcement: none, replicas: 2, devices: {profiles: ['1g.10gb']}}]}",
			flags: []process.Setting{process.Flag("mig-devices", "on-demand"), process.Flag("shared-devices", `[{"enforcement":"none","replicas":2,"devices":{"profiles":["1g.10gb"]}}]`)},
			more:  []string{"--kubernetes-version", "1.36"}, release: "v1.36.0",
		},
		"a layout, others on demand": {
			machine: "hgx-h100-8", values: "migDevices: on-demand\nmigLayouts: {configMap: layouts, default: small}",
			flags: []process.Setting{process.Flag("mig-devices", "on-demand"), process.Flag("mig-layout-file", layouts), process.Flag("mig-layout", "small")},
			more:  []string{"--mig-layout-file", layouts},
		},
		"a layout, others whole": {
			machine: "hgx-h100-8", values: "migDevices: static\nmigLayouts: {configMap: layouts}",
			flags: []process.Setting{process.Flag("mig-devices", "static"), process.Flag("mig-layout-file", layouts), process.Flag("mig-layout", "small")},
			more:  []string{"--mig-layout-file", layouts, "--mig-layout", "small"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := process.New(t, tc.machine)
			if tc.release != "" {
				b.API.SetVersion(tc.release)
			}
			want := anonymous(t, thought(t, tc.machine, tc.values, tc.more...))
			b.Start(append(tc.flags, process.Flag("rescan-interval", "1s"))...)
			b.Eventually("the slices are as thought", func() error {
				if diff := cmp.Diff(want, anonymous(t, slicesOf(t, b))); diff != "" {
					return fmt.Errorf("slices (-thought +published):\n%s", diff)
				}
				return nil
			})
		})
	}
}

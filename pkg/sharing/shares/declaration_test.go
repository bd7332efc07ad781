package shares

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/topology"
)

func parsed(t *testing.T, text string) []Declaration {
	t.Helper()
	declarations, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return declarations
}

func TestParse(t *testing.T) {
	have := parsed(t, `
- nodes: [pool-a-*]
  devices: {products: ["*H100*"], indices: [0, 1]}
  enforcement: mps
  replicas: 4
  threadPercentage: 30
- enforcement: none
`)
	want := []Declaration{
		{
			Nodes: []string{"pool-a-*"}, Devices: Filter{Products: []string{"*H100*"}, Indices: []int{0, 1}},
			Enforcement: "mps", Replicas: 4, ThreadPercentage: new(30),
		},
		{Enforcement: "none"},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("declarations (-want +got):\n%s", diff)
	}
	for _, text := range []string{"", " \n", "[]"} {
		if have := parsed(t, text); len(have) > 0 {
			t.Errorf("%q declares %v", text, have)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string][]string{
		`enforcement: mps`:                                         {"not a list"},
		`[{enforcement: mps, replica: 4}]`:                         {"replica"},
		`[{replicas: 4}]`:                                          {"enforcement", `""`, "mps, driver, cooperative, none"},
		`[{enforcement: none}, {enforcement: MPS}]`:                {"declaration 1", `"MPS"`},
		`[{enforcement: none, replicas: 1}]`:                       {"replicas: 1", "2 to 128"},
		`[{enforcement: none, replicas: -2}]`:                      {"replicas: -2"},
		`[{enforcement: none, replicas: 129}]`:                     {"replicas: 129"},
		`[{enforcement: mps}]`:                                     {"replicas: 0", "2 to 60"},
		`[{enforcement: mps, replicas: 61}]`:                       {"replicas: 61", "2 to 60"},
		`[{enforcement: none, threadPercentage: 50}]`:              {"threadPercentage: 50", "mps"},
		`[{enforcement: mps, replicas: 2, threadPercentage: 101}]`: {"threadPercentage: 101", "1 to 100"},
		`[{enforcement: none, nodes: [""]}]`:                       {"nodes", "empty"},
		`[{enforcement: none, devices: {uuids: [gpu0]}}]`:          {"devices.uuids", `"gpu0"`, "nvidia-smi -L"},
		`[{enforcement: none, devices: {pciAddresses: ["1a:0"]}}]`: {"devices.pciAddresses", `"1a:0"`},
		`[{enforcement: none, devices: {indices: [-1]}}]`:          {"devices.indices", "-1"},
		`[{enforcement: none, devices: {products: [""]}}]`:         {"devices.products", "empty"},
		`[{enforcement: none, devices: {profiles: [""]}}]`:         {"devices.profiles", "empty"},
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

func TestForNodes(t *testing.T) {
	declarations := parsed(t, `[{enforcement: none, nodes: ["pool-a-*", b], replicas: 2}, {enforcement: none, replicas: 3}]`)
	for node, want := range map[string][]int{"pool-a-1": {2, 3}, "b": {2, 3}, "bb": {3}, "pool-b-1": {3}} {
		var have []int
		for _, d := range For(node, declarations) {
			have = append(have, d.Replicas)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +got):\n%s", node, diff)
		}
	}
}

// shared lists the names of the devices that a declaration makes shared.
func shared(declarations []Declaration, snapshot inventory.Snapshot, devices []device.Device) []string {
	of := Of(declarations, snapshot)
	var names []string
	for _, d := range devices {
		if s := of(d); s != nil {
			names = append(names, strings.TrimPrefix(d.Name(), "gpu-0000-"))
		}
	}
	return names
}

func TestFilterOfGPUs(t *testing.T) {
	// Four GPUs at 17, 65, ca and e3, in another order of NVML.
	snapshot := inventorytest.Mixed()
	devices := device.FromSnapshot(snapshot, topology.Assignment{})
	var all []string
	for _, d := range devices {
		all = append(all, strings.TrimPrefix(d.Name(), "gpu-0000-"))
	}
	first, second := snapshot.GPUs[0], snapshot.GPUs[1]
	for filter, want := range map[string][]string{
		`{}`:                            all,
		`{uuids: [` + first.UUID + `]}`: all[:1],
		`{uuids: [GPU-0]}`:              nil,
		`{pciAddresses: ["` + second.PCI.String() + `"]}`:                         all[1:2],
		`{pciAddresses: ["` + strings.ToUpper("0000"+second.PCI.String()) + `"]}`: all[1:2],
		`{products: ["` + first.ProductName + `"]}`:                               all[:2],
		`{products: ["*` + strings.ToLower(first.ProductName[7:11]) + `*"]}`:      all[:2],
		`{indices: [0]}`:    all[:1],
		`{indices: [1, 9]}`: all[1:2],
		`{profiles: ["*"]}`: nil,
		`{uuids: [` + first.UUID + `], pciAddresses: ["` + second.PCI.String() + `"]}`: nil,
		`{products: [x, "*"], indices: [0, 1]}`:                                        all[:2],
	} {
		declarations := parsed(t, `[{enforcement: none, devices: `+filter+`}]`)
		if diff := cmp.Diff(want, shared(declarations, snapshot, devices)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filter, diff)
		}
	}
}

func TestFilterOfPartitions(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	snapshot.GPUs = snapshot.GPUs[:2]
	snapshot.GPUs[1] = migtest.With(t, snapshot.GPUs[1], false, "1g.10gb:4")
	devices := device.FromPartitionedSnapshot(snapshot, topology.Assignment{}, nil).Devices
	count := func(match func(name string) bool) int {
		n := 0
		for _, d := range devices {
			if match(d.Name()) {
				n++
			}
		}
		return n
	}
	small := func(name string) bool { return strings.Contains(name, "mig-1g-10gb-") && !strings.Contains(name, "me") }
	ofFirst := func(name string) bool { return strings.HasPrefix(name, device.GPUName(snapshot.GPUs[0].PCI)) }
	for filter, want := range map[string]int{
		`{}`:                                  count(func(name string) bool { return !strings.Contains(name, "mig") }),
		`{profiles: ["*"]}`:                   count(func(name string) bool { return strings.Contains(name, "mig") }),
		`{profiles: [1g.10gb]}`:               count(small),
		`{profiles: [1g.10gb], indices: [0]}`: count(func(name string) bool { return small(name) && ofFirst(name) }),
	} {
		declarations, err := Parse(`[{enforcement: none, devices: ` + filter + `}]`)
		if err != nil {
			t.Fatal(err)
		}
		if names := shared(declarations, snapshot, devices); len(names) != want {
			t.Errorf("%s: %d devices, want %d: %v", filter, len(names), want, names)
		}
	}
	one := []Declaration{{Enforcement: "none", Devices: Filter{UUIDs: []string{"MIG-1g.10gb-4"}}}}
	if names := shared(one, snapshot, devices); len(names) != 1 || !strings.HasSuffix(names[0], "mig-1g-10gb-4") {
		t.Errorf("by MIG UUID: %v", names)
	}
}

func TestTheFirstDeclarationDecides(t *testing.T) {
	snapshot := inventorytest.T4()
	devices := device.FromSnapshot(snapshot, topology.Assignment{})
	of := Of(parsed(t, `
- {enforcement: mps, replicas: 2, threadPercentage: 40, devices: {indices: [0]}}
- {enforcement: none, replicas: 8, devices: {indices: [0, 1]}}
`), snapshot)
	want := []*device.Sharing{
		{Enforcement: device.EnforcedByMPS, Replicas: 2, ThreadPercentage: new(40)}, {Enforcement: device.NotEnforced, Replicas: 8}, nil, nil,
	}
	for i, d := range devices {
		if diff := cmp.Diff(want[i], of(d)); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", i, diff)
		}
	}
}

// A GPU that is lost keeps its place: the next one does not become what it was.
func TestIndicesOfALostGPU(t *testing.T) {
	snapshot := inventorytest.T4()
	lost := snapshot.GPUs[0]
	snapshot.GPUs = snapshot.GPUs[1:]
	snapshot.Unusable = []inventory.Unusable{{PCI: lost.PCI, Reason: "lost"}}
	devices := device.FromSnapshot(snapshot, topology.Assignment{})
	for index, want := range map[int]string{0: "", 1: devices[0].Name(), 3: devices[2].Name()} {
		names := shared([]Declaration{{Enforcement: "none", Devices: Filter{Indices: []int{index}}}}, snapshot, devices)
		if have := strings.Join(names, " "); have != strings.TrimPrefix(want, "gpu-0000-") {
			t.Errorf("index %d: %q, want %q", index, have, want)
		}
	}
	// One that is ill and still offered is in both lists.
	snapshot.GPUs = append(snapshot.GPUs, lost)
	if names := shared([]Declaration{{Enforcement: "none", Devices: Filter{Indices: []int{1}}}}, snapshot, devices); len(names) != 1 {
		t.Errorf("index 1: %v", names)
	} else if want := strings.TrimPrefix(devices[0].Name(), "gpu-0000-"); names[0] != want {
		t.Errorf("index 1: %v, want %s", names, want)
	}
}

// Whatever an admin writes: declarations that are valid, or an error that says why.
func FuzzParse(f *testing.F) {
	f.Add(`[{enforcement: mps, replicas: 4, devices: {products: ["*H100*"], pciAddresses: ["0000:1a:00.0"]}}]`)
	f.Add(`- nodes: ["("]`)
	snapshot := inventorytest.T4()
	devices := device.FromSnapshot(snapshot, topology.Assignment{})
	f.Fuzz(func(t *testing.T, text string) {
		declarations, err := Parse(text)
		if err != nil {
			return
		}
		for _, d := range For("node", declarations) {
			if d.Enforcement == device.EnforcedByMPS && d.Replicas < 2 {
				t.Fatalf("%q: %+v", text, d)
			}
		}
		out, omissions := device.Share(devices, Of(declarations, snapshot))
		if len(out)+len(omissions) != len(devices) {
			t.Fatalf("%q: %d devices and %d omissions of %d", text, len(out), len(omissions), len(devices))
		}
	})
}

package nodefile_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// minimal is a valid node file; tests change one thing in it.
const minimal = `
apiVersion: gpusim/v1
name: test
driver: {version: 580.105.08, cuda: "13.0"}
board: h100-sxm5-80gb
gpus:
- {pci: "0000:9d:00.0", root: pci0000:97, numa: 1}
- {pci: "0000:1b:00.0", root: pci0000:15, bridges: ["0000:15:01.0"], numa: 0, cpus: "0-3,8"}
nvlink:
  direct:
  - {gpus: [0, 1], links: 4}
`

func resolve(t *testing.T, text string) *nodefile.Node {
	t.Helper()
	node, err := nodefile.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	node := resolve(t, minimal)
	wantDriver := nodefile.Driver{
		Version: "580.105.08", NVML: "13.580.105.08", CUDA: "13.0", Branch: "r580_00",
		Lacks: []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"},
	}
	if diff := cmp.Diff(wantDriver, node.Driver); diff != "" {
		t.Errorf("driver (-want +got):\n%s", diff)
	}
	if node.CUDA != 13000 || node.PeerMaxLevel != nodefile.LevelPHB || node.Majors != (nodefile.Majors{GPU: 195, UVM: 510, Caps: 236}) {
		t.Errorf("cuda %d, peer level %d, majors %+v", node.CUDA, node.PeerMaxLevel, node.Majors)
	}
	first := node.GPUs[0]
	if first.PCI.String() != "0000:1b:00.0" || first.Minor != 0 || first.NUMA != 0 || first.MemoryNUMA != -1 || first.IOMMUGroup != 40 {
		t.Errorf("first GPU %+v, want the one of the lowest address", first)
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 8}, first.CPUs); diff != "" {
		t.Errorf("CPUs (-want +got):\n%s", diff)
	}
	want := slices.Concat(slices.Repeat([]nodefile.Link{{Peer: 1}}, 4), slices.Repeat([]nodefile.Link{{Peer: -1}}, 14))
	if diff := cmp.Diff(want, first.Links); diff != "" {
		t.Errorf("links of the first GPU name peers in PCI order (-want +got):\n%s", diff)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	a, again := resolve(t, minimal), resolve(t, minimal)
	other := resolve(t, strings.Replace(minimal, "name: test", "name: test\nseed: worker-2", 1))
	if a.GPUs[0].UUID != again.GPUs[0].UUID || a.GPUs[0].Serial != again.GPUs[0].Serial {
		t.Error("the same file gives different identities")
	}
	if a.GPUs[0].UUID == other.GPUs[0].UUID || a.GPUs[0].UUID == a.GPUs[1].UUID || a.GPUs[0].Serial == a.GPUs[1].Serial {
		t.Error("different boards share an identity")
	}
	parts := strings.Split(a.GPUs[0].UUID, "-")
	if len(parts) != 6 || parts[0] != "GPU" || parts[3][0] != '4' || !strings.Contains("89ab", parts[4][:1]) {
		t.Errorf("UUID %s is not of version 4", a.GPUs[0].UUID)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, from, to, want string }{
		{"unknown field", "board: h100", "colour: red\nboard: h100", `unknown field "colour"`},
		{"doubled field", "name: test", "name: test\nname: again", "already set"},
		{"version", "gpusim/v1", "gpusim/v9", `apiVersion: Invalid value: "gpusim/v9": must be gpusim/v1`},
		{"name", "name: test", `name: ""`, "name: Invalid value"},
		{"driver with slash", "version: 580.105.08", "version: 580/1", "driver.version: Invalid value"},
		{"cuda", `cuda: "13.0"`, `cuda: "thirteen"`, "driver.cuda: Invalid value"},
		{"peer level", "board: h100", "peerMaxLevel: FAR\nboard: h100", "peerMaxLevel: Invalid value"},
		{"board", "board: h100-sxm5-80gb", "board: h900", `gpus[0].board: Invalid value: "h900"`},
		{"address", `"0000:9d:00.0"`, `"9d:00.0"`, "gpus[0].pci: Invalid value"},
		{"upper case address", `"0000:9d:00.0"`, `"0000:9D:00.0"`, "gpus[0].pci: Invalid value"},
		{"same address", `"0000:9d:00.0"`, `"0000:1b:00.0"`, "pci: Duplicate value"},
		{"root", "pci0000:97", "0000:97", "gpus[0].root: Invalid value"},
		{"bridge", `"0000:15:01.0"`, `"15"`, "gpus[1].bridges[0]: Invalid value"},
		{"numa", "numa: 1", "numa: -2", "gpus[0].numa: Invalid value"},
		{"cpus", `"0-3,8"`, `"3-0"`, "gpus[1].cpus: Invalid value"},
		{"minor", "numa: 1", "minor: 0, numa: 1", "gpus[1].minor: Duplicate value"},
		{"minor of nvidiactl", "numa: 1", "minor: 255, numa: 1", "at most 254"},
		{"uuid", "numa: 1", "uuid: " + strings.Repeat("u", 70) + ", numa: 1", "at most 63 characters"},
		{"override field", "numa: 1", `override: {size: 3}, numa: 1`, `unknown field "size"`},
		{"product", "numa: 1", `override: {product: "` + strings.Repeat("p", 96) + `"}, numa: 1`, "1 to 95 characters"},
		{"brand", "numa: 1", "override: {brand: other}, numa: 1", "brand: Invalid value"},
		{"reserved memory", "numa: 1", "override: {reservedMiB: 999999}, numa: 1", "reservedMiB: Invalid value"},
		{"pci id", "numa: 1", `override: {pciDevice: "h100"}, numa: 1`, "pciDevice: Invalid value"},
		{"link position", "gpus: [0, 1]", "gpus: [0, 2]", "must be a position in gpus"},
		{"self link", "gpus: [0, 1]", "gpus: [1, 1]", "must connect different GPUs"},
		{"too many links", "links: 4", "links: 19", "more links connected than the board has"},
		{"no NVLink", "board: h100-sxm5-80gb", "board: t4-16gb", "this GPU's board has no NVLink"},
		{"circle", "board: h100-sxm5-80gb", "board: a\nboards: {a: {extends: b}, b: {extends: a}}", "is it a circle?"},
		{"fabric state", "board: h100", "fabric: {state: broken}\nboard: h100", "fabric.state: Invalid value"},
		{"cluster", "board: h100", "fabric: {state: completed, clusterUUID: 12}\nboard: h100", "fabric.clusterUUID: Invalid value"},
		{"mig units", "numa: 1", "override: {mig: {units: 0}}, numa: 1", "mig.units: Invalid value"},
		{"mig placement", "numa: 1", "override: {mig: {units: 4}}, numa: 1", "must end within the board's units"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(minimal, test.from, test.to, 1)
			if text == minimal {
				t.Fatalf("the test changes nothing: %q is not there", test.from)
			}
			if _, err := nodefile.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("numa: 1", "numa: -9", "pci0000:15", "here", `"13.0"`, `"x"`).Replace(minimal)
	_, err := nodefile.Decode([]byte(text))
	for _, want := range []string{"driver.cuda", "gpus[0].numa", "gpus[1].root"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("apiVersion: gpusim/v1\nname: many\ndriver: {version: 1, cuda: \"13.0\"}\nboard: l40s-48gb\ngpus:\n")
	for i := range 65 {
		fmt.Fprintf(&b, "- {pci: \"0000:%02x:00.0\", root: pci0000:00}\n", i+1)
		_, err := nodefile.Decode([]byte(b.String()))
		if failed := err != nil; failed != (i == 64) {
			t.Fatalf("with %d GPUs: %v", i+1, err)
		}
	}
	if _, err := nodefile.Decode(make([]byte, 2<<20)); err == nil {
		t.Error("a node file of 2 MiB was read")
	}
}

func TestBoards(t *testing.T) {
	t.Parallel()
	node := resolve(t, strings.Replace(minimal, "board: h100-sxm5-80gb", `board: mine
boards:
  mine: {extends: h100-sxm5-80gb, product: Mine, nvlink: {links: 6}, unsupported: [serial]}`, 1))
	got := node.GPUs[0].Board
	if got.Product != "Mine" || got.MemoryMiB != 81559 || *got.NVLink != (nodefile.BoardNVLink{Version: 4, Links: 6, SpeedMBps: 26562}) || len(got.MIG.Profiles) != 7 {
		t.Errorf("extended board %+v", got)
	}
	base := resolve(t, minimal).GPUs[0].Board
	if base.Product != "NVIDIA H100 80GB HBM3" || base.NVLink.Links != 18 {
		t.Errorf("the built-in board changed: %+v", base)
	}
}

func TestUnknownPreset(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "nope", "../boards/t4-16gb", "t4-4.yaml"} {
		if _, err := nodefile.Preset(name); !errors.Is(err, nodefile.ErrUnknown) {
			t.Errorf("preset %q: %v, want ErrUnknown", name, err)
		}
	}
}

// presets resolves every built-in node.
func presets(t *testing.T) map[string]*nodefile.Node {
	t.Helper()
	out := map[string]*nodefile.Node{}
	for _, name := range nodefile.Presets() {
		file, err := nodefile.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if out[name], err = nodefile.Resolve(file); err != nil {
			t.Fatal(err)
		}
		if file.Name != name || file.Description == "" {
			t.Errorf("preset %s calls itself %q, %q", name, file.Name, file.Description)
		}
	}
	return out
}

func TestPresetsAreWholeMachines(t *testing.T) {
	t.Parallel()
	want := map[string]int{
		"a100-pcie-8": 8, "a30-4": 4, "dgx-a100-40": 8, "dgx-a100-80": 8, "dgx1-v100": 8, "gb200-nvl72": 4, "hgx-b200-8": 8, "hgx-h100-16": 16, "hgx-h100-8": 8,
		"hgx-h200-8": 8, "l40s-8": 8, "mixed": 5, "rtx-pro-6000-8": 8, "t4-4": 4, "two-islands": 8,
	}
	got := map[string]int{}
	for name, node := range presets(t) {
		got[name] = len(node.GPUs)
		for i := range node.GPUs {
			checkMIG(t, name, node.GPUs[i].Board.MIG)
			for _, link := range node.GPUs[i].Links {
				if link.Peer >= 0 && count(node.GPUs[i].Links, link.Peer) != count(node.GPUs[link.Peer].Links, i) {
					t.Errorf("%s: GPU %d and GPU %d disagree about their links", name, i, link.Peer)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("presets and their GPUs (-want +got):\n%s", diff)
	}
}

func count(links []nodefile.Link, peer int) int {
	n := 0
	for _, l := range links {
		if l.Peer == peer {
			n++
		}
	}
	return n
}

// checkMIG holds profiles to what is true on every board.
func checkMIG(t *testing.T, preset string, mig *nodefile.BoardMIG) {
	t.Helper()
	if mig == nil {
		return
	}
	ids, enums := map[uint32]bool{}, map[uint32]bool{}
	for _, p := range mig.Profiles {
		if ids[p.ID] || enums[p.Enum] {
			t.Errorf("%s: profile %s repeats an id", preset, p.Name)
		}
		ids[p.ID], enums[p.Enum] = true, true
		if !strings.HasPrefix(p.Name, fmt.Sprintf("%dg.", p.Slices)) || p.Max > uint32(len(p.Starts)) {
			t.Errorf("%s: profile %s has %d slices, at most %d of them in %d places", preset, p.Name, p.Slices, p.Max, len(p.Starts))
		}
	}
	if !ids[0] {
		t.Errorf("%s: no profile is the whole board", preset)
	}
}

func TestCubeMeshUsesAllLinks(t *testing.T) {
	t.Parallel()
	for i, gpu := range presets(t)["dgx1-v100"].GPUs {
		if len(gpu.Links) != 6 || count(gpu.Links, -1) != 0 {
			t.Errorf("GPU %d: links %v, want six that lead somewhere", i, gpu.Links)
		}
	}
}

// The demonstration counts on these sums: unit cost inside an island, four across.
func TestTwoIslandsCost(t *testing.T) {
	t.Parallel()
	node := presets(t)["two-islands"]
	cost := func(set ...int) int {
		sum := 0
		for i, a := range set {
			for _, b := range set[i+1:] {
				if count(node.GPUs[a].Links, b) > 0 {
					sum++
				} else {
					sum += 4
				}
			}
		}
		return sum
	}
	if naive, island := cost(2, 3, 4, 5), cost(4, 5, 6, 7); naive != 18 || island != 6 {
		t.Errorf("costs %d and %d, want 18 and 6", naive, island)
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	at := func(text string) nodefile.Address {
		a, err := nodefile.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	gpu := func(pci, root string, numa int, bridges ...string) *nodefile.ResolvedGPU {
		out := &nodefile.ResolvedGPU{PCI: at(pci), Root: root, NUMA: numa}
		for _, b := range bridges {
			out.Bridges = append(out.Bridges, at(b))
		}
		return out
	}
	base := gpu("0000:10:00.0", "pci0000:00", 0, "0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
	tests := []struct {
		name  string
		other *nodefile.ResolvedGPU
		want  nodefile.Level
	}{
		{"itself", base, nodefile.LevelInternal},
		{"same switch", gpu("0000:11:00.0", "pci0000:00", 0, "0000:00:01.0", "0000:01:00.0", "0000:02:01.0"), nodefile.LevelPIX},
		{"same root port", gpu("0000:12:00.0", "pci0000:00", 0, "0000:00:01.0", "0000:03:00.0", "0000:04:00.0"), nodefile.LevelPXB},
		{"same host bridge", gpu("0000:13:00.0", "pci0000:00", 0, "0000:00:02.0", "0000:05:00.0", "0000:06:00.0"), nodefile.LevelPHB},
		{"same NUMA node", gpu("0000:20:00.0", "pci0000:20", 0), nodefile.LevelNode},
		{"other NUMA node", gpu("0000:80:00.0", "pci0000:80", 1), nodefile.LevelSystem},
		{"no NUMA node", gpu("0000:81:00.0", "pci0000:81", -1), nodefile.LevelSystem},
	}
	for _, test := range tests {
		if got, back := nodefile.Distance(base, test.other), nodefile.Distance(test.other, base); got != test.want || back != got {
			t.Errorf("%s: %d and back %d, want %d", test.name, got, back, test.want)
		}
	}
}

func TestAddressRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := nodefile.Address{
			Domain: rapid.Uint32Range(0, 0xffff).Draw(t, "domain"), Bus: rapid.Uint32Range(0, 0xff).Draw(t, "bus"),
			Device: rapid.Uint32Range(0, 0x1f).Draw(t, "device"), Function: rapid.Uint32Range(0, 7).Draw(t, "function"),
		}
		got, err := nodefile.ParseAddress(want.String())
		if err != nil || got != want || got.Compare(want) != 0 {
			t.Fatalf("%s: %v, %v", want, got, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(minimal))
	for _, name := range nodefile.Presets() {
		f.Add([]byte("apiVersion: gpusim/v1\nname: " + name))
	}
	f.Add([]byte("gpus: [{pci: 1}]"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		node, err := nodefile.Decode(text)
		if err != nil {
			return
		}
		if len(node.GPUs) > 64 || node.Name == "" || bytes.ContainsAny([]byte(node.Driver.Version), "/ ") {
			t.Errorf("accepted a node that cannot be laid out: %+v", node)
		}
		for i := range node.GPUs {
			if i > 0 && node.GPUs[i-1].PCI.Compare(node.GPUs[i].PCI) >= 0 {
				t.Errorf("GPU %d is not in PCI order", i)
			}
			for _, l := range node.GPUs[i].Links {
				if l.Peer >= len(node.GPUs) || l.Peer == i {
					t.Errorf("GPU %d has a link to %d", i, l.Peer)
				}
			}
		}
	})
}

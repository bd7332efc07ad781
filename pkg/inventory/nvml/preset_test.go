package nvml_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// described is the snapshot that a node file asks for.
func described(t *testing.T, spec *nodefile.Node) []inventory.GPU {
	t.Helper()
	var gpus []inventory.GPU
	for i := range spec.GPUs {
		in := &spec.GPUs[i]
		ecc := in.Board.ECC
		g := inventory.GPU{
			PCI: address(in), UUID: in.UUID, Minor: int(in.Minor), Index: i, ProductName: in.Board.Product,
			Brand: published(in.Board.Brand), Architecture: published(in.Board.Architecture), Serial: in.Serial,
			MemoryBytes: in.Board.MemoryMiB << 20, PCIeRoot: in.Root, Fabric: inventory.Fabric{Healthy: true},
			MIG: inventory.MIG{Capable: in.Board.MIG != nil},
		}
		if !slices.Contains(in.Board.Unsupported, "addressingMode") {
			g.AddressingMode = published(in.Board.Addressing)
		}
		if _, err := fmt.Sscanf(in.Board.ComputeCapability, "%d.%d", &g.ComputeMajor, &g.ComputeMinor); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(in.Board.PCIDevice[:6], "0x%x", &g.PCIDevice); err != nil {
			t.Fatal(err)
		}
		if ecc {
			g.ECCEnabled = &ecc
		}
		if in.NUMA >= 0 {
			numa := in.NUMA
			g.NUMANode = &numa
		}
		g.NVLink = describedLinks(spec, i)
		if in.Fabric != nil {
			g.Fabric.State = inventory.FabricCompleted
			g.Fabric.CliqueID = in.Fabric.Clique
			if id := in.Fabric.ClusterUUID; id != [16]byte{} {
				g.Fabric.ClusterUUID = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
			}
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// published are the names that claims select by.
func published(name string) string {
	return map[string]string{
		"nvidia": "Nvidia", "tesla": "Tesla", "volta": "Volta", "turing": "Turing", "ampere": "Ampere",
		"ada": "Ada Lovelace", "hopper": "Hopper", "blackwell": "Blackwell", "none": "None", "ats": "ATS",
	}[name]
}

func address(g *nodefile.ResolvedGPU) pci.Address {
	return pci.Address{Domain: g.PCI.Domain, Bus: uint8(g.PCI.Bus), Device: uint8(g.PCI.Device)}
}

func describedLinks(spec *nodefile.Node, i int) inventory.NVLink {
	in := &spec.GPUs[i]
	n := inventory.NVLink{PeersKnown: in.Board.NVLink != nil}
	for _, l := range in.Links {
		switch {
		case l.Plane != 0:
			n.Links = append(n.Links, inventory.Link{Active: true, Remote: inventory.RemoteSwitch})
		case l.Peer >= 0:
			n.Links = append(n.Links, inventory.Link{Active: true, Remote: inventory.RemoteGPU, Peer: address(&spec.GPUs[l.Peer])})
		default:
			n.Links = append(n.Links, inventory.Link{})
		}
	}
	for j := range spec.GPUs {
		if j != i && linked(in, &spec.GPUs[j], j) {
			n.Peers = append(n.Peers, address(&spec.GPUs[j]))
		}
	}
	return n
}

func linked(a, b *nodefile.ResolvedGPU, number int) bool {
	return slices.ContainsFunc(a.Links, func(l nodefile.Link) bool {
		return l.Peer == number || l.Plane != 0 && slices.ContainsFunc(b.Links, func(o nodefile.Link) bool { return o.Plane == l.Plane })
	})
}

func TestPresetsAreReadAsDescribed(t *testing.T) {
	for _, preset := range nodefile.Presets() {
		t.Run(preset, func(t *testing.T) {
			m := newMachine(t, preset)
			got := m.scan(t)
			if !got.Driver.Present || got.Driver.Version != m.Spec().Driver.Version || got.Driver.CUDAMajor == 0 {
				t.Errorf("driver is %+v", got.Driver)
			}
			if len(got.Unusable) != 0 || len(got.Problems) != 0 {
				t.Errorf("unusable %+v, problems %+v", got.Unusable, got.Problems)
			}
			speed := cmp.Options{cmpopts.IgnoreFields(inventory.NVLink{}, "Version"), cmpopts.IgnoreFields(inventory.Link{}, "BandwidthMBps")}
			if diff := cmp.Diff(described(t, m.Spec()), got.GPUs, speed); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if again := m.scan(t); !got.Same(again) {
				t.Errorf("the second scan differs: %+v", inventory.Diff(got, again))
			}
		})
	}
}

// The simulated library answers for a generation with the release that nvml.h enumerates: A100's
// 3.0 is 4, H100's 4.0 is 6.
func TestLinkGenerationAndBandwidth(t *testing.T) {
	type speed struct{ generation, megabytes int }
	for preset, versions := range map[string]map[int]speed{
		"gb200-nvl72": {1: {1, 20000}, 2: {2, 25000}, 3: {3, 25000}, 4: {4, 25000}, 5: {5, 50000}, 99: {0, 0}},
		// Some drivers give 5.0 for Hopper.
		"hgx-h100-8": {4: {4, 25000}, 5: {4, 25000}},
	} {
		t.Run(preset, func(t *testing.T) {
			m := newMachine(t, preset)
			for raw, want := range versions {
				do(t, setLinkVersion(m.Node, raw))
				do(t, m.library.Close(t.Context()))
				got := m.scan(t)
				n := got.GPUs[0].NVLink
				if (speed{n.Version, n.Links[0].BandwidthMBps}) != want {
					t.Errorf("generation %d is read as %d with %d MB/s, want %+v", raw, n.Version, n.Links[0].BandwidthMBps, want)
				}
				if known := len(got.Problems) == 0; known != (want.generation != 0) {
					t.Errorf("version %d: problems are %+v", raw, got.Problems)
				}
			}
		})
	}
}

func TestOddValues(t *testing.T) {
	long := strings.Repeat("NVIDIA H100 ", 8)[:95]
	override := func(text string) gpusim.Option {
		return gpusim.WithFile(func(f *nodefile.File) {
			f.GPUs[0].Override = []byte(text)
			f.Driver.Version = "580.105.08-custom"
			none := -1
			f.GPUs[0].NUMA = &none
		})
	}
	m := newMachine(t, "hgx-h100-8", override(fmt.Sprintf(`{"product": %q, "unsupported": ["memory"]}`, long)))
	got := m.scan(t)
	if len(got.GPUs) != 8 || len(got.Problems) != 0 {
		t.Fatalf("%d GPUs, problems %+v", len(got.GPUs), got.Problems)
	}
	if g := got.GPUs[0]; g.ProductName != long || g.MemoryBytes != 0 || g.NUMANode != nil || got.Driver.Version != "580.105.08-custom" {
		t.Errorf("product %q, memory %d, NUMA %v, driver %q", g.ProductName, g.MemoryBytes, g.NUMANode, got.Driver.Version)
	}
}

func BenchmarkScan(b *testing.B) {
	for _, preset := range []string{"hgx-h100-8", "hgx-h100-16", "l40s-8"} {
		b.Run(preset, func(b *testing.B) {
			m := newMachine(b, preset)
			m.scan(b)
			for b.Loop() {
				m.scan(b)
			}
		})
	}
}

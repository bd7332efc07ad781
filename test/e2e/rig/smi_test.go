package rig

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseList(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   []string
		fails  bool
	}{
		"none": {output: "\n", want: []string{}},
		"two": {
			output: "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)\nGPU 1: Tesla (odd) name (UUID: GPU-0b-1)\r\n",
			want:   []string{"GPU-aa", "GPU-0b-1"},
		},
		"a message":       {output: "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", fails: true},
		"a lost GPU":      {output: "GPU 0: A (UUID: GPU-aa)\nUnable to determine the device handle for GPU 1: GPU is lost\n", fails: true},
		"a MIG partition": {output: "GPU 0: A (UUID: GPU-aa)\n  MIG 1g.10gb Device 0: (UUID: MIG-bb)\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseList(c.output)
			if (err != nil) != c.fails {
				t.Fatalf("error: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("UUIDs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseParts(t *testing.T) {
	const gpu = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)\n"
	for name, c := range map[string]struct {
		output string
		want   []Part
		fails  bool
	}{
		"none":      {output: "\n", want: []Part{}},
		"a whole":   {output: gpu, want: []Part{}},
		"one":       {output: gpu + "  MIG 1g.10gb     Device  0: (UUID: MIG-bb)\n", want: []Part{{"GPU-aa", "1g.10gb", "MIG-bb"}}},
		"of two":    {output: gpu + "GPU 1: A (UUID: GPU-cc)\n  MIG 1g.24gb+me.all Device  3: (UUID: MIG-0d)\n", want: []Part{{"GPU-cc", "1g.24gb+me.all", "MIG-0d"}}},
		"orphan":    {output: "  MIG 1g.10gb     Device  0: (UUID: MIG-bb)\n", fails: true},
		"a message": {output: gpu + "No MIG devices found.\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseParts(c.output)
			if (err != nil) != c.fails {
				t.Fatalf("error: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("partitions (-want +got):\n%s", diff)
			}
		})
	}
}

const pairTopology = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" +
	"GPU0\t X \tNV12\t0-31\t0\t\tN/A\n" +
	"GPU1\tNV12\t X \t0-31\t0\t\tN/A\n\nLegend:\n\n  X    = the GPU itself\n"

func TestParseTopology(t *testing.T) {
	got, err := ParseTopology(pairTopology)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Links{{"X", "NV12"}, {"NV12", "X"}}, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if fault := got.OverNVLink(); fault != "" {
		t.Errorf("a pair with a bridge: %s", fault)
	}
	for _, word := range []string{"SYS", "NODE", "PIX"} {
		crossed, err := ParseTopology(strings.ReplaceAll(pairTopology, "NV12", word))
		if err != nil {
			t.Fatal(err)
		}
		if fault := crossed.OverNVLink(); !strings.Contains(fault, "GPU0 and GPU1 are joined by "+word) {
			t.Errorf("a pair joined by %s: %q", word, fault)
		}
	}
}

func TestParseTopologyRefuses(t *testing.T) {
	for name, output := range map[string]string{
		"nothing":          "",
		"a message":        "NVIDIA-SMI has failed\nand says why\n",
		"a heading alone":  "\tGPU0\tGPU1\tCPU Affinity\n",
		"a row too few":    "\tGPU0\tGPU1\nGPU0\tX\tNV1\n",
		"a short row":      "\tGPU0\tGPU1\nGPU0\tX\nGPU1\tNV1\tX\n",
		"rows in disorder": "\tGPU0\tGPU1\nGPU1\tNV1\tX\nGPU0\tX\tNV1\n",
	} {
		if links, err := ParseTopology(output); err == nil {
			t.Errorf("%s: read as %v", name, links)
		}
	}
}

// TestParseTopologyReadsBack writes random matrices as nvidia-smi does, and reads them.
func TestParseTopologyReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 16).Draw(t, "GPUs")
		want := make(Links, n)
		var text strings.Builder
		for i := range n {
			text.WriteString("\tGPU" + strconv.Itoa(i))
			want[i] = make([]string, n)
		}
		text.WriteString("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n")
		for i := range n {
			text.WriteString("GPU" + strconv.Itoa(i))
			for j := range n {
				want[i][j] = "X"
				if i != j {
					want[i][j] = rapid.SampledFrom([]string{"NV1", "NV18", "SYS", "NODE", "PHB", "PXB", "PIX"}).Draw(t, "link")
				}
				text.WriteString("\t" + want[i][j])
			}
			text.WriteString("\t0-31\t0\t\tN/A\n")
		}
		got, err := ParseTopology(text.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("links (-want +got):\n%s", diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(pairTopology)
	f.Add("GPU 0: A (UUID: GPU-aa)\n")
	f.Add("\tGPU0\tGPU NUMA ID\nGPU0\t X \n")
	f.Fuzz(func(t *testing.T, text string) {
		if links, err := ParseTopology(text); err == nil {
			for _, row := range links {
				if len(row) != len(links) {
					t.Fatalf("%d rows, one of %d", len(links), len(row))
				}
			}
			links.OverNVLink()
		}
		if uuids, err := ParseList(text); err == nil && len(uuids) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d GPUs in %q", len(uuids), text)
		}
	})
}

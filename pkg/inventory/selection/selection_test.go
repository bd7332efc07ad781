package selection_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

func parsed(t testing.TB, text string) []selection.Entry {
	t.Helper()
	entries, err := selection.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestParse(t *testing.T) {
	have := parsed(t, `
- nodes: [pool-a-*]
  products: ["*H100*"]
- uuids: [GPU-1]
  pciAddresses: ["0000:1a:00.0", "00000000:3B:00.0"]
`)
	want := []selection.Entry{
		{Nodes: []string{"pool-a-*"}, Products: []string{"*H100*"}},
		{UUIDs: []string{"GPU-1"}, PCIAddresses: []string{"0000:1a:00.0", "00000000:3B:00.0"}},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for _, text := range []string{"", " \n", "[]"} {
		if have := parsed(t, text); len(have) > 0 {
			t.Errorf("%q gives %v", text, have)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string][]string{
		`uuids: [GPU-1]`:                    {"not a list", "pciAddresses"},
		`[{product: T4}]`:                   {"product"},
		`[{}]`:                              {"entry 0", "says nothing", "nodes, uuids, pciAddresses or products"},
		`[{uuids: [GPU-1]}, {uuids: [0]}]`:  {"uuids"},
		`[{uuids: [GPU-1]}, {uuids: [x]}]`:  {"entry 1", "uuids", `"x"`, "nvidia-smi -L"},
		`[{uuids: [MIG-1]}]`:                {"uuids", `"MIG-1"`, "GPU-…"},
		`[{pciAddresses: ["1a:0"]}]`:        {"pciAddresses", `"1a:0"`, "0000:1a:00.0"},
		`[{products: [""]}]`:                {"products", "empty", "*"},
		`[{nodes: [""], products: ["T4"]}]`: {"nodes", "empty"},
	} {
		_, err := selection.Parse(text)
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

const h100 = "NVIDIA H100 80GB HBM3"

func gpu(bus uint8, uuid, product string) selection.Identity {
	return selection.Identity{PCI: pci.Address{Bus: bus}, UUID: uuid, Product: product}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		include, exclude string
		gpu              selection.Identity
		want             selection.Verdict
	}{
		"nothing is said":              {"", "", gpu(1, "", ""), selection.Served},
		"by address":                   {"", `[{pciAddresses: ["0000:01:00.0"]}]`, gpu(1, "", ""), selection.Excluded},
		"in NVML's form":               {"", `[{pciAddresses: ["00000000:0A:00.0"]}]`, gpu(10, "", ""), selection.Excluded},
		"another address":              {"", `[{pciAddresses: ["0000:01:00.0"]}]`, gpu(2, "", ""), selection.Served},
		"by UUID":                      {"", `[{uuids: [GPU-1]}]`, gpu(1, "GPU-1", ""), selection.Excluded},
		"another UUID":                 {"", `[{uuids: [GPU-1]}]`, gpu(1, "GPU-11", ""), selection.Served},
		"UUID not known":               {"", `[{uuids: [GPU-1]}]`, gpu(1, "", h100), selection.Undecided},
		"by product":                   {"", `[{products: ["*h100*"]}]`, gpu(1, "", h100), selection.Excluded},
		"product not known":            {"", `[{products: ["*h100*"]}]`, gpu(1, "GPU-1", ""), selection.Undecided},
		"a part of a product":          {"", `[{products: [H100]}]`, gpu(1, "", h100), selection.Served},
		"address decides":              {"", `[{pciAddresses: ["0000:01:00.0"], products: [T4]}]`, gpu(2, "", ""), selection.Served},
		"address is not enough":        {"", `[{pciAddresses: ["0000:01:00.0"], products: [T4]}]`, gpu(1, "", ""), selection.Undecided},
		"both lists":                   {"", `[{pciAddresses: ["0000:01:00.0"], products: [T4]}]`, gpu(1, "", "T4"), selection.Excluded},
		"another entry":                {"", `[{products: [T4]}, {pciAddresses: ["0000:01:00.0"]}]`, gpu(1, "", ""), selection.Excluded},
		"included":                     {`[{uuids: [GPU-1]}]`, "", gpu(1, "GPU-1", ""), selection.Served},
		"not included":                 {`[{uuids: [GPU-1]}]`, "", gpu(1, "GPU-2", ""), selection.Excluded},
		"maybe included":               {`[{uuids: [GPU-1]}]`, "", gpu(1, "", ""), selection.Undecided},
		"included by one of two":       {`[{uuids: [GPU-1]}, {products: [T4]}]`, "", gpu(1, "GPU-2", "T4"), selection.Served},
		"included and excluded":        {`[{uuids: [GPU-1]}]`, `[{pciAddresses: ["0000:01:00.0"]}]`, gpu(1, "", ""), selection.Excluded},
		"not included, maybe excluded": {`[{pciAddresses: ["0000:02:00.0"]}]`, `[{products: [T4]}]`, gpu(1, "", ""), selection.Excluded},
		"a node's GPUs":                {"", `[{nodes: [node]}]`, gpu(1, "", ""), selection.Excluded},
		"another node's":               {"", `[{nodes: [node-2], uuids: [GPU-1]}]`, gpu(1, "", ""), selection.Served},
		"included on others alone":     {`[{nodes: [node-2], uuids: [GPU-1]}]`, "", gpu(1, "", ""), selection.Served},
	} {
		t.Run(name, func(t *testing.T) {
			s := selection.For("node", parsed(t, c.include), parsed(t, c.exclude))
			if have := s.Verdict(c.gpu); have != c.want {
				t.Errorf("it is %s, want %s", have, c.want)
			}
		})
	}
}

// entries draws lists over few values, so that they often fit.
func entries(t *rapid.T, label string) []selection.Entry {
	few := func(what string, values ...string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(values), 0, 2).Draw(t, label+" "+what)
	}
	var out []selection.Entry
	for range rapid.IntRange(0, 3).Draw(t, label) {
		out = append(out, selection.Entry{
			Nodes: few("nodes", "node", "other", "n*"), UUIDs: few("uuids", "GPU-1", "GPU-2"),
			PCIAddresses: few("addresses", "0000:01:00.0", "00000000:02:00.0"), Products: few("products", "*", "T4", "*H100*"),
		})
	}
	return out
}

// To know more never takes a decision back, to know all always brings one, and one more entry to
// exclude serves no GPU that was excluded.
func TestVerdictsStand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		include, exclude := entries(t, "include"), entries(t, "exclude")
		s := selection.For("node", include, exclude)
		all := gpu(rapid.Uint8Range(1, 3).Draw(t, "bus"), rapid.SampledFrom([]string{"GPU-1", "GPU-3"}).Draw(t, "uuid"), rapid.SampledFrom([]string{"T4", h100}).Draw(t, "product"))
		decision := s.Verdict(all)
		if decision == selection.Undecided {
			t.Fatalf("%v does not decide on %+v", s, all)
		}
		for _, less := range []selection.Identity{{PCI: all.PCI}, {PCI: all.PCI, UUID: all.UUID}, {PCI: all.PCI, Product: all.Product}} {
			if early := s.Verdict(less); early != selection.Undecided && early != decision {
				t.Fatalf("%+v is %s and %+v is %s", less, early, all, decision)
			}
		}
		more := selection.For("node", include, append(entries(t, "more"), exclude...))
		if decision == selection.Excluded && more.Verdict(all) != selection.Excluded {
			t.Fatalf("with more exclusions %+v is %s", all, more.Verdict(all))
		}
		if s.Everything() && decision != selection.Served {
			t.Fatalf("%+v is %s by a selection of everything", all, decision)
		}
	})
}

func TestLike(t *testing.T) {
	for pattern, fits := range map[string]bool{
		h100: true, "nvidia*": true, "*HBM3": true, "*80gb*": true, "*": true, "N*A H*3": true,
		"H100": false, "NVIDIA": false, "*HBM3?": false, "NVIDIA.H100 80GB HBM3": false, "": false,
	} {
		if selection.Like([]string{"x", pattern}, h100) != fits {
			t.Errorf("%q fits %q: %t, want %t", pattern, h100, !fits, fits)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "[]", `[{uuids: [GPU-1], nodes: ["*"]}]`, `[{pciAddresses: ["0000:1a:00.0"]}]`, `[{products: ["*(*"]}]`, "- nodes:\n  - \"\\xff\"", "{}",
	} {
		f.Add(seed, "NVIDIA A30")
	}
	f.Fuzz(func(t *testing.T, text, product string) {
		entries, err := selection.Parse(text)
		if err != nil {
			return
		}
		id := gpu(1, "GPU-1", product)
		if product == "" {
			id.Product = "T4"
		}
		included, excluded := selection.For("node", entries, nil).Verdict(id), selection.For("node", nil, entries).Verdict(id)
		if included == selection.Undecided || excluded == selection.Undecided {
			t.Fatalf("all is known of %+v, and %q says %s and %s", id, text, included, excluded)
		}
		// What one list takes in the other leaves out, on nodes that it speaks of.
		if !selection.For("node", entries, nil).Everything() && included == excluded {
			t.Fatalf("%q both serves and excludes %+v", text, id)
		}
	})
}

func BenchmarkVerdict(b *testing.B) {
	s := selection.For("node", parsed(b, `[{products: ["*H100*", "*H200*"]}]`), parsed(b, `[{pciAddresses: ["0000:1a:00.0"]}, {uuids: [GPU-1]}]`))
	id := gpu(3, "GPU-2", h100)
	for b.Loop() {
		if s.Verdict(id) != selection.Served {
			b.Fatal("not served")
		}
	}
}

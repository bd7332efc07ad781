package pci_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/pci"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]pci.Address{
		"0000:1a:00.0":     {Bus: 0x1a},
		"0000:1A:00.0":     {Bus: 0x1a},
		"00000000:1A:00.0": {Bus: 0x1a},
		"0009:01:00.0":     {Domain: 9, Bus: 1},
		"10000:ff:1f.7":    {Domain: 0x10000, Bus: 0xff, Device: 0x1f, Function: 7},
		"ffffffff:ff:1f.7": {Domain: 0xffffffff, Bus: 0xff, Device: 0x1f, Function: 7},
	} {
		got, err := pci.Parse(text)
		if err != nil {
			t.Errorf("Parse(%q): %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", text, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                    "",
		"no domain":                "1a:00.0",
		"short domain":             "000:1a:00.0",
		"long domain":              "000000000:1a:00.0",
		"device over 31":           "0000:1a:20.0",
		"function over 7":          "0000:1a:00.8",
		"NVML's sentinel":          "FFFFFFFF:FF:FF.0",
		"two function digits":      "0000:1a:00.00",
		"dash for a colon":         "0000-1a:00.0",
		"wrong second separator":   "0000:1a-00.0",
		"comma for the dot":        "0000:1a:00,0",
		"not hexadecimal domain":   "000g:1a:00.0",
		"not hexadecimal bus":      "0000:zz:00.0",
		"sign":                     "+000:1a:00.0",
		"space in front":           " 0000:1a:00.0",
		"newline behind":           "0000:1a:00.0\n",
		"letters outside of ASCII": "0000:1а:00.0",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pci.Parse(text)
			if err == nil {
				t.Fatalf("Parse(%q) = %v, want an error", text, got)
			}
			if text != "" && !strings.Contains(err.Error(), "dddd:bb:dd.f") {
				t.Errorf("the error does not say what is allowed: %v", err)
			}
			if got != (pci.Address{}) {
				t.Errorf("a refused address leaves %v", got)
			}
		})
	}
}

func addresses() *rapid.Generator[pci.Address] {
	return rapid.Custom(func(t *rapid.T) pci.Address {
		return pci.Address{
			Domain:   rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32()).Draw(t, "domain"),
			Bus:      rapid.Uint8().Draw(t, "bus"),
			Device:   rapid.Uint8Range(0, 31).Draw(t, "device"),
			Function: rapid.Uint8Range(0, 7).Draw(t, "function"),
		}
	})
}

func TestTextGoesThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := addresses().Draw(t, "address")
		for _, text := range []string{a.String(), strings.ToUpper(a.String())} {
			back, err := pci.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if back != a {
				t.Fatalf("%v became %v by way of %q", a, back, text)
			}
		}
	})
}

// Device names and lock files are made of labels: two functions must never share one.
func TestLabelsAreDistinctAndLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := addresses().Draw(t, "a"), addresses().Draw(t, "b")
		if (a == b) != (a.Label() == b.Label()) {
			t.Fatalf("%v and %v have the labels %q and %q", a, b, a.Label(), b.Label())
		}
		if strings.Trim(a.Label(), "0123456789abcdef-") != "" || strings.HasPrefix(a.Label(), "-") {
			t.Fatalf("%q is not part of a DNS label", a.Label())
		}
	})
}

func TestCompareOrdersAsTheBus(t *testing.T) {
	want := []pci.Address{
		{}, {Function: 1}, {Device: 1}, {Device: 1, Function: 1}, {Bus: 1}, {Bus: 0x1a}, {Domain: 1}, {Domain: 0x10000},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, pci.Address.Compare)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := addresses().Draw(t, "a"), addresses().Draw(t, "b")
		if a.Compare(b) != -b.Compare(a) || (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("Compare is not an order for %v and %v", a, b)
		}
	})
}

func TestAddressInJSON(t *testing.T) {
	type record struct {
		At    pci.Address
		Names map[pci.Address]string
	}
	want := record{At: pci.Address{Bus: 0x1a}, Names: map[pci.Address]string{{Domain: 9, Bus: 1}: "x"}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != `{"At":"0000:1a:00.0","Names":{"0009:01:00.0":"x"}}` {
		t.Errorf("JSON is %s", text)
	}
	var got record
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after JSON (-want +got):\n%s", diff)
	}
	if err := json.Unmarshal([]byte(`{"At":"1a:00.0"}`), &got); err == nil {
		t.Error("a short address was taken")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0000:1a:00.0", "FFFFFFFF:FF:FF.0", "00000008:01:00.0", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := pci.Parse(text)
		if err != nil {
			return
		}
		back, err := pci.Parse(a.String())
		if err != nil || back != a {
			t.Errorf("Parse(%q) = %v, which reads back as %v, %v", text, a, back, err)
		}
		if want := strings.TrimLeft(strings.ToLower(text), "0"); !strings.HasSuffix(a.String(), want) {
			t.Errorf("Parse(%q) = %v", text, a)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := pci.Parse("00000000:1A:00.0"); err != nil {
			b.Fatal(err)
		}
	}
}

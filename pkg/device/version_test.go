package device_test

import (
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
)

func TestVersion(t *testing.T) {
	for text, want := range map[string]string{
		"580.95.05":                        "580.95.5",
		"580.65.06":                        "580.65.6",
		"580.105.08-custom":                "580.105.8+custom",
		"580.105.08+b.1":                   "580.105.8+b.1",
		"13.0":                             "13.0.0",
		"9.0":                              "9.0.0",
		"9":                                "9.0.0",
		"000":                              "0.0.0",
		"v1.2.3":                           "1.2.3",
		" 1.2.3\n":                         "1.2.3",
		"1.2.3.4":                          "1.2.3+4",
		"1.2.":                             "1.2.0",
		"1..2":                             "1.0.0+2",
		"1.x":                              "1.0.0+x",
		"580-server":                       "580.0.0+server",
		"1.2.3-ä_ß":                        "1.2.3",
		"1.2.3---":                         "1.2.3",
		"18446744073709551615":             "18446744073709551615.0.0",
		"1.2.3-" + strings.Repeat("x", 70): "1.2.3",
	} {
		if got, err := device.Version(text); got != want || err != nil {
			t.Errorf("Version(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "v", "custom", "-1", ".1", "18446744073709551616.0.0", "1." + strings.Repeat("9", 70)} {
		if got, err := device.Version(text); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("Version(%q) = %q, %v; want an error", text, got, err)
		}
	}
}

func TestVersionKeepsTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching(`0{0,3}(0|[1-9][0-9]{0,5})`)
		parts := rapid.SliceOfN(digits, 1, 3).Draw(t, "numbers")
		text := strings.Join(parts, ".") + rapid.SampledFrom([]string{"", "-rc1", "+x", " "}).Draw(t, "suffix")
		got, err := device.Version(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed := semver.MustParse(got)
		for i, n := range []uint64{parsed.Major, parsed.Minor, parsed.Patch} {
			var want uint64
			if i < len(parts) {
				for _, c := range parts[i] {
					want = want*10 + uint64(c-'0')
				}
			}
			if n != want {
				t.Fatalf("%q became %q: number %d is %d, want %d", text, got, i, n, want)
			}
		}
	})
}

func FuzzVersion(f *testing.F) {
	for _, s := range []string{"580.105.08-custom", "13.0", "v1", "1..2", "1.2.3.4-5", "-", "\x00", "1.2.3-\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := device.Version(text)
		if err != nil {
			return
		}
		if _, err := semver.Parse(got); err != nil || len(got) > 64 {
			t.Fatalf("Version(%q) = %q: %v", text, got, err)
		}
		if again, err := device.Version(got); err != nil || again != got {
			t.Fatalf("Version(%q) = %q, again %q, %v", text, got, again, err)
		}
	})
}

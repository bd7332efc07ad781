package v1beta1

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// object writes a configuration of the given kind with the JSON of its sharing field.
func object(kind, sharing string) []byte {
	if sharing == "" {
		return []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"}`)
	}
	return []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `","sharing":` + sharing + `}`)
}

func header(kind string) TypeMeta { return TypeMeta{APIVersion: APIVersion, Kind: kind} }

const allOfMPS = `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,
	"defaultPinnedDeviceMemoryLimit":"4Gi","defaultPerDevicePinnedMemoryLimit":{"0":"2Gi","gpu":1073741824},"multiUser":true}}`

func mpsValue() *MPSConfig {
	return &MPSConfig{
		DefaultActiveThreadPercentage:     new(50),
		DefaultPinnedDeviceMemoryLimit:    new(Memory("4Gi")),
		DefaultPerDevicePinnedMemoryLimit: map[string]Memory{"0": "2Gi", "gpu": "1073741824"},
		MultiUser:                         new(true),
	}
}

func TestDecode(t *testing.T) {
	tests := map[string]struct {
		raw  []byte
		want Config
	}{
		"gpu, exclusive": {object(KindGpuConfig, ""), &GpuConfig{TypeMeta: header(KindGpuConfig)}},
		"gpu, time slicing": {
			object(KindGpuConfig, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
			&GpuConfig{TypeMeta: header(KindGpuConfig), Sharing: &GpuSharing{
				Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{Interval: new(LongTimeSlice)},
			}},
		},
		"gpu, MPS with every field": {
			object(KindGpuConfig, allOfMPS),
			&GpuConfig{TypeMeta: header(KindGpuConfig), Sharing: &GpuSharing{Strategy: MPS, MPSConfig: mpsValue()}},
		},
		"mig, exclusive": {object(KindMigDeviceConfig, ""), &MigDeviceConfig{TypeMeta: header(KindMigDeviceConfig)}},
		"mig, MPS with every field": {
			object(KindMigDeviceConfig, allOfMPS),
			&MigDeviceConfig{TypeMeta: header(KindMigDeviceConfig), Sharing: &MigDeviceSharing{Strategy: MPS, MPSConfig: mpsValue()}},
		},
		"null is absent": {object(KindGpuConfig, "null"), &GpuConfig{TypeMeta: header(KindGpuConfig)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, decode := range []func([]byte) (Config, error){Decode, DecodeStored} {
				got, err := decode(tt.raw)
				if err != nil {
					t.Fatalf("decoding %s: %v", tt.raw, err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("decoding %s (-want +got):\n%s", tt.raw, diff)
				}
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := map[string]struct {
		raw string
		// want are parts of the message: the field, the value, what is allowed.
		want []string
		// stored tells that the lenient decoder takes it all the same.
		stored bool
	}{
		"nothing":          {raw: "", want: []string{"not valid JSON, at byte 0", "apiVersion", "unexpected end"}},
		"null":             {raw: "null", want: []string{`kind ""`, "GpuConfig", "MigDeviceConfig", "resource.nvidia.com/v1beta1"}},
		"an array":         {raw: "[]", want: []string{"not an object with apiVersion and kind", "is an array, must be an object"}},
		"no JSON":          {raw: `{"kind": NaN}`, want: []string{"not valid JSON, at byte 10", "'N'"}},
		"object for text":  {raw: `{"kind": {}}`, want: []string{"kind: is an object, must be a string"}},
		"two objects":      {raw: string(object(KindGpuConfig, "")) + "{}", want: []string{"after top-level value"}},
		"no kind":          {raw: `{"apiVersion":"resource.nvidia.com/v1beta1"}`, want: []string{`kind ""`, `"GpuConfig"`}},
		"another version":  {raw: `{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`, want: []string{`"resource.nvidia.com/v1"`, `"resource.nvidia.com/v1beta1"`}},
		"another group":    {raw: `{"apiVersion":"gpu.nvidia.com/v1beta1","kind":"GpuConfig"}`, want: []string{`"gpu.nvidia.com/v1beta1"`}},
		"another kind":     {raw: string(object("VfioDeviceConfig", "")), want: []string{`"VfioDeviceConfig"`, `"MigDeviceConfig"`}},
		"kind of a number": {raw: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":7}`, want: []string{"kind: is a number, must be a string"}},
		"an unknown field": {
			raw: string(object(KindGpuConfig, `{"strategy":"MPS","mpsConfig":{"threads":5}}`)), stored: true,
			want: []string{"GpuConfig", `unknown field "sharing.mpsConfig.threads"`},
		},
		"the wrong case": {
			raw: string(object(KindGpuConfig, `{"Strategy":"MPS"}`)), stored: true,
			want: []string{`unknown field "sharing.Strategy"`},
		},
		"a field twice": {
			raw: string(object(KindGpuConfig, `{"strategy":"MPS","strategy":"TimeSlicing"}`)), stored: true,
			want: []string{`duplicate field "sharing.strategy"`},
		},
		"time slicing settings on MIG": {
			raw: string(object(KindMigDeviceConfig, `{"strategy":"TimeSlicing","timeSlicingConfig":{}}`)), stored: true,
			want: []string{"MigDeviceConfig", `unknown field "sharing.timeSlicingConfig"`},
		},
		"a number as text":  {raw: string(object(KindGpuConfig, `{"mpsConfig":{"defaultActiveThreadPercentage":"5"}}`)), want: []string{"sharing.mpsConfig.defaultActiveThreadPercentage: is a string, must be a whole number"}},
		"a fraction":        {raw: string(object(KindGpuConfig, `{"mpsConfig":{"defaultActiveThreadPercentage":5.5}}`)), want: []string{"is a number 5.5, must be a whole number"}},
		"a truth as number": {raw: string(object(KindGpuConfig, `{"mpsConfig":{"multiUser":1}}`)), want: []string{"sharing.mpsConfig.multiUser: is a number, must be true or false"}},
		"text for object":   {raw: string(object(KindGpuConfig, `"MPS"`)), want: []string{"sharing: is a string, must be an object"}},
		"number for text":   {raw: string(object(KindGpuConfig, `{"strategy":5}`)), want: []string{"sharing.strategy: is a number, must be a string"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := Decode([]byte(tt.raw))
			if err == nil {
				t.Fatalf("Decode(%s) = %+v, want an error", tt.raw, config)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("Decode(%s): %q does not say %q", tt.raw, err, part)
				}
			}
			if _, err := DecodeStored([]byte(tt.raw)); (err == nil) != tt.stored {
				t.Errorf("DecodeStored(%s): error %v, want one: %t", tt.raw, err, !tt.stored)
			}
		})
	}
}

func TestDecodeErrorsAreTyped(t *testing.T) {
	_, err := Decode(object("ComputeDomainChannelConfig", ""))
	var unknown *UnknownKindError
	if !errors.As(err, &unknown) || unknown.Kind != "ComputeDomainChannelConfig" || unknown.APIVersion != APIVersion {
		t.Errorf("an unknown kind gives %#v", err)
	}
	var mismatch *json.UnmarshalTypeError
	if _, err := Decode(object(KindGpuConfig, "5")); !errors.As(err, &mismatch) || mismatch.Field != "sharing" {
		t.Errorf("a wrong type gives %#v, which does not wrap its cause", err)
	}
}

// Whatever a user writes, and however much of it, the message is one short line that still
// names the field.
func TestMessagesAreShort(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	var limits, fields []string
	for i := range 200 {
		limits = append(limits, fmt.Sprintf(`"%d_\n%s":"%d%s"`, i, long[:1000], i, long[:1000]))
		fields = append(fields, fmt.Sprintf(`"field%d":1`, i))
	}
	tests := map[string]struct{ raw, want string }{
		"kind":          {string(object(long, "")), "kind"},
		"version":       {`{"apiVersion":"` + long + `"}`, "apiVersion"},
		"unknown field": {string(object(KindGpuConfig, `{"`+long+`":1}`)), `unknown field "sharing.xxx`},
		"many fields":   {string(object(KindGpuConfig, `{`+strings.Join(fields, ",")+`}`)), "and 95 more"},
		"number":        {string(object(KindGpuConfig, `{"mpsConfig":{"defaultActiveThreadPercentage":`+strings.Repeat("9", 10<<10)+`}}`)), "defaultActiveThreadPercentage: is a number 999"},
		"strategy":      {string(object(KindGpuConfig, `{"strategy":"`+long+`"}`)), "sharing.strategy: Unsupported"},
		"other's":       {string(object(KindGpuConfig, `{"strategy":"`+long+`","mpsConfig":{}}`)), "goes only with"},
		"interval":      {string(object(KindGpuConfig, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"`+long+`"}}`)), "interval: Unsupported"},
		"memory":        {string(object(KindGpuConfig, `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"`+long+`"}}`)), "MemoryLimit: Invalid"},
		"many limits":   {string(object(KindMigDeviceConfig, `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{`+strings.Join(limits, ",")+`}}}`)), "more"},
		"two lines":     {string(object(KindGpuConfig, `{"a\nb":1,"c":2}`)), `unknown field "sharing.a\nb"; unknown field "sharing.c"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Load([]byte(tt.raw))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v; want an error that says %q", err, tt.want)
			}
			if text := err.Error(); len(text) > 2000 || strings.Contains(text, "\n") || strings.Contains(text, long[:maxEcho+1]) {
				t.Errorf("a message of %d bytes: %.2100s", len(text), text)
			}
		})
	}
}

func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOfN(rapid.Rune(), 40, 200), func(r []rune) string { return string(r) })).Draw(t, "s")
		got := cut(s)
		head, shortened := strings.CutSuffix(got, "…")
		switch {
		case len(s) <= maxEcho && got != s:
			t.Fatalf("a short text was changed: %q", got)
		case len(s) > maxEcho && (!shortened || !strings.HasPrefix(s, head) || len(head) > maxEcho || !utf8.ValidString(got)):
			t.Fatalf("%q was cut to %q", s, got)
		}
	})
}

func TestLoad(t *testing.T) {
	got, err := Load(object(KindGpuConfig, `{"strategy":"TimeSlicing"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &GpuConfig{TypeMeta: header(KindGpuConfig), Sharing: &GpuSharing{
		Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{Interval: new(DefaultTimeSlice)},
	}}
	if diff := cmp.Diff(Config(want), got); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if _, err := Load(object(KindGpuConfig, `{"strategy":"Half"}`)); err == nil ||
		!strings.Contains(err.Error(), `GpuConfig: sharing.strategy: Unsupported value: "Half": supported values: "MPS", "TimeSlicing"`) {
		t.Errorf("an unknown strategy gives %v", err)
	}
	if _, err := Load([]byte("{")); err == nil {
		t.Error("half an object was loaded")
	}
}

// FuzzDecode holds what must be true of any bytes: no panic; what the strict decoder takes the
// lenient one takes with the same result; defaulting changes nothing the second time, not the
// original, and makes no valid configuration invalid; what was decoded can be written and read.
func FuzzDecode(f *testing.F) {
	for _, seed := range [][]byte{
		nil, []byte("null"), []byte("[]"), object(KindGpuConfig, ""), object(KindMigDeviceConfig, allOfMPS),
		object(KindGpuConfig, allOfMPS), object(KindGpuConfig, `{"strategy":"TimeSlicing","timeSlicingConfig":{}}`),
		object(KindGpuConfig, `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":{},"defaultPerDevicePinnedMemoryLimit":{"":null}}}`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := Decode(raw)
		if err != nil {
			if text := err.Error(); len(text) > 4000 || strings.Contains(text, "\n") {
				t.Fatalf("not one short line: %q", text)
			}
			return
		}
		if _, err := Load(raw); err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Fatalf("more than one line: %q", err)
		}
		stored, err := DecodeStored(raw)
		if err != nil {
			t.Fatalf("the lenient decoder refuses what the strict one takes: %v", err)
		}
		if diff := cmp.Diff(config, stored); diff != "" {
			t.Fatalf("strict and lenient differ:\n%s", diff)
		}
		before := len(config.Validate())
		defaulted := config.Defaulted()
		if diff := cmp.Diff(stored, config); diff != "" {
			t.Fatalf("defaulting changed the original:\n%s", diff)
		}
		if diff := cmp.Diff(defaulted, defaulted.Defaulted()); diff != "" {
			t.Fatalf("defaulting twice is not defaulting once:\n%s", diff)
		}
		if after := len(defaulted.Validate()); after != before {
			t.Fatalf("%d mistakes before defaulting, %d after", before, after)
		}
		roundTrip(t, config)
	})
}

func roundTrip(t *testing.T, config Config) {
	t.Helper()
	written, err := json.Marshal(config)
	if err != nil {
		t.Fatalf("writing %+v: %v", config, err)
	}
	again, err := Decode(written)
	if err != nil {
		t.Fatalf("reading %s again: %v", written, err)
	}
	if rewritten, err := json.Marshal(again); err != nil || string(rewritten) != string(written) {
		t.Fatalf("%s became %s (%v)", written, rewritten, err)
	}
}

func BenchmarkLoad(b *testing.B) {
	raw := object(KindGpuConfig, allOfMPS)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(raw); err != nil {
			b.Fatal(err)
		}
	}
}

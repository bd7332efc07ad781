package device_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/device"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"uuid": true, "_x9": true, "resource.kubernetes.io/pciBusID": true, strings.Repeat("a", 32): true,
		"": false, "memory-slice": false, "9x": false, strings.Repeat("a", 33): false, "a/b/c": false,
		"/uuid": false, "UPPER.io/x": false, strings.Repeat("a", 64) + "/x": false, "a.b/": false, "ä": false,
	} {
		if err := device.CheckName(resourceapi.QualifiedName(name)); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want ok %t", name, err, ok)
		}
	}
}

func TestCheckAttribute(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	for name, tc := range map[string]struct {
		value resourceapi.DeviceAttribute
		want  string
	}{
		"text":             {text(strings.Repeat("x", 64)), ""},
		"empty text":       {text(""), ""},
		"long text":        {text(strings.Repeat("x", 65)), "65 bytes, at most 64"},
		"bytes, not runes": {text(strings.Repeat("ä", 33)), "66 bytes"},
		"not UTF-8":        {text("\xff"), "printable"},
		"control bytes":    {text("a\x00b"), "printable"},
		"version":          {version("580.95.5+x"), ""},
		"short version":    {version("13.0"), "semantic version"},
		"leading zero":     {version("580.95.05"), "semantic version"},
		"long version":     {version("1.2.3+" + strings.Repeat("x", 60)), "66 bytes"},
		"no value":         {resourceapi.DeviceAttribute{}, "0 values"},
		"empty list":       {resourceapi.DeviceAttribute{StringValues: []string{}}, "0 values"},
		"two values":       {resourceapi.DeviceAttribute{StringValue: ptr.To("x"), BoolValue: ptr.To(true)}, "2 values"},
		"list":             {resourceapi.DeviceAttribute{StringValues: []string{"a", "b"}}, ""},
		"list, one long":   {resourceapi.DeviceAttribute{StringValues: []string{"a", strings.Repeat("x", 65)}}, "65 bytes"},
		"versions":         {resourceapi.DeviceAttribute{VersionValues: []string{"1.2.3", "1.2"}}, "semantic version"},
		"ints":             {resourceapi.DeviceAttribute{IntValues: []int64{1}}, ""},
		"bools":            {resourceapi.DeviceAttribute{BoolValues: []bool{true}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := device.CheckAttribute("x", tc.value)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	if err := device.CheckAttribute("bad-name", text("x")); err == nil {
		t.Error("a bad name passes")
	}
}

func TestCountValues(t *testing.T) {
	for want, value := range map[int]resourceapi.DeviceAttribute{
		1: {IntValue: ptr.To(int64(3))},
		2: {BoolValues: []bool{true, false}},
		3: {StringValues: []string{"a", "b", "c"}},
	} {
		if got := device.CountValues(value); got != want {
			t.Errorf("CountValues(%v) = %d, want %d", value, got, want)
		}
	}
}

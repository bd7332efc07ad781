package v1beta1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

func fieldsOf(errs field.ErrorList) []string {
	var fields []string
	for _, err := range errs {
		fields = append(fields, string(err.Type)+" "+err.Field)
	}
	return fields
}

func TestValidateGpuConfig(t *testing.T) {
	ts := func(interval TimeSlice) *TimeSlicingConfig { return &TimeSlicingConfig{Interval: new(interval)} }
	tests := map[string]struct {
		sharing *GpuSharing
		want    []string
	}{
		"exclusive":                       {},
		"time slicing, nothing more":      {sharing: &GpuSharing{Strategy: TimeSlicing}},
		"time slicing, empty settings":    {sharing: &GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{}}},
		"time slicing, Default":           {sharing: &GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: ts(DefaultTimeSlice)}},
		"time slicing, Short":             {sharing: &GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: ts(ShortTimeSlice)}},
		"time slicing, Medium":            {sharing: &GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: ts(MediumTimeSlice)}},
		"time slicing, Long":              {sharing: &GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: ts(LongTimeSlice)}},
		"time slicing, unknown interval":  {&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: ts("long")}, []string{"FieldValueNotSupported sharing.timeSlicingConfig.interval"}},
		"time slicing with MPS settings":  {&GpuSharing{Strategy: TimeSlicing, MPSConfig: &MPSConfig{}}, []string{"FieldValueForbidden sharing.mpsConfig"}},
		"MPS, nothing more":               {sharing: &GpuSharing{Strategy: MPS}},
		"MPS with time slicing settings":  {&GpuSharing{Strategy: MPS, TimeSlicingConfig: &TimeSlicingConfig{}}, []string{"FieldValueForbidden sharing.timeSlicingConfig"}},
		"MPS with a bogus time slice":     {&GpuSharing{Strategy: MPS, TimeSlicingConfig: ts("Bogus")}, []string{"FieldValueForbidden sharing.timeSlicingConfig", "FieldValueNotSupported sharing.timeSlicingConfig.interval"}},
		"no strategy":                     {&GpuSharing{}, []string{"FieldValueRequired sharing.strategy"}},
		"unknown strategy":                {&GpuSharing{Strategy: "mps"}, []string{"FieldValueNotSupported sharing.strategy"}},
		"settings without a strategy":     {&GpuSharing{MPSConfig: &MPSConfig{}}, []string{"FieldValueRequired sharing.strategy", "FieldValueForbidden sharing.mpsConfig"}},
		"every mistake at once is listed": {&GpuSharing{Strategy: MPS, MPSConfig: &MPSConfig{DefaultActiveThreadPercentage: new(-1), DefaultPinnedDeviceMemoryLimit: new(Memory(""))}}, []string{"FieldValueInvalid sharing.mpsConfig.defaultActiveThreadPercentage", "FieldValueInvalid sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			config := &GpuConfig{Sharing: tt.sharing}
			if diff := cmp.Diff(tt.want, fieldsOf(config.Validate())); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, fieldsOf(config.Defaulted().Validate())); diff != "" {
				t.Errorf("mistakes after defaulting (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateMigDeviceConfig(t *testing.T) {
	tests := map[string]struct {
		sharing *MigDeviceSharing
		want    []string
	}{
		"exclusive":                 {},
		"time slicing is accepted":  {sharing: &MigDeviceSharing{Strategy: TimeSlicing}},
		"MPS":                       {sharing: &MigDeviceSharing{Strategy: MPS, MPSConfig: mpsValue()}},
		"settings of the other one": {&MigDeviceSharing{Strategy: TimeSlicing, MPSConfig: &MPSConfig{}}, []string{"FieldValueForbidden sharing.mpsConfig"}},
		"no strategy":               {&MigDeviceSharing{}, []string{"FieldValueRequired sharing.strategy"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			config := &MigDeviceConfig{Sharing: tt.sharing}
			if diff := cmp.Diff(tt.want, fieldsOf(config.Validate())); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestThreadPercentage(t *testing.T) {
	for percentage, ok := range map[int]bool{-1: false, 0: true, 1: true, 100: true, 101: false} {
		config := &GpuConfig{Sharing: &GpuSharing{Strategy: MPS, MPSConfig: &MPSConfig{DefaultActiveThreadPercentage: &percentage}}}
		if errs := config.Validate(); (len(errs) == 0) != ok {
			t.Errorf("%d %%: %v", percentage, errs)
		}
	}
}

func TestMemoryBytes(t *testing.T) {
	good := map[Memory]int64{
		"1Mi": 1 << 20, "4Gi": 4 << 30, "1G": 1e9, "1048576": 1 << 20, "1.5Gi": 3 << 29, "2e9": 2e9, "80Gi": 80 << 30,
	}
	for text, want := range good {
		if got, err := text.Bytes(); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", text, got, err, want)
		}
	}
	bad := map[Memory]string{
		"": "must be a quantity", "0": "at least 1Mi", "-1Gi": "at least 1Mi", "1Ki": "at least 1Mi", "0.5": "at least 1Mi",
		"4 Gi": "must be a quantity", "lots": "must be a quantity", "1e99999": "at most", "100Ei": "at most", "null": "must be a quantity",
	}
	for text, want := range bad {
		if got, err := text.Bytes(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q = %d, %v; want an error that says %q", text, got, err, want)
		}
	}
}

func TestPerDeviceKeys(t *testing.T) {
	const id = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
	good := []string{"0", "7", "31", "GPU-" + id, "MIG-" + id, "gpu", "gpu/large", "gpu-0", "0a"}
	bad := []string{"", "32", "007", "-1", "GPU-", "GPU-1", "GPU-" + id + "0", "GPU-{" + id + "}", "Gpu", "gpu/", "/gpu", "a/b/c", "gpu_0", "99999999999999999999"}
	check := func(key string, limit Memory) field.ErrorList {
		config := &GpuConfig{Sharing: &GpuSharing{Strategy: MPS, MPSConfig: &MPSConfig{
			DefaultPerDevicePinnedMemoryLimit: map[string]Memory{key: limit},
		}}}
		return config.Validate()
	}
	for _, key := range good {
		if errs := check(key, "1Gi"); len(errs) != 0 {
			t.Errorf("key %q: %v", key, errs)
		}
	}
	for _, key := range bad {
		errs := check(key, "1Gi")
		if len(errs) != 1 || errs[0].BadValue != key || !strings.Contains(errs[0].Detail, "UUID") {
			t.Errorf("key %q: %v; want one mistake with the key and what is allowed", key, errs)
		}
	}
	if errs := check("0", "0"); len(errs) != 1 || errs[0].Field != "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]" {
		t.Errorf("a limit of nothing: %v", errs)
	}
}

// A mistake found in a map must read the same every time, or Events cannot be counted.
func TestMessagesAreStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.MapOf(rapid.String(), rapid.Map(rapid.String(), func(s string) Memory { return Memory(s) })).Draw(t, "limits")
		config := &MigDeviceConfig{Sharing: &MigDeviceSharing{Strategy: MPS, MPSConfig: &MPSConfig{DefaultPerDevicePinnedMemoryLimit: limits}}}
		first := config.Validate()
		if diff := cmp.Diff(first, config.Defaulted().Validate()); diff != "" {
			t.Fatalf("two validations differ:\n%s", diff)
		}
		for _, err := range first {
			if err.Field == "" || err.Detail == "" {
				t.Fatalf("%v names no field or does not say what is allowed", err)
			}
		}
	})
}

package v1beta1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaulted(t *testing.T) {
	gpu := func(s *GpuSharing) Config { return &GpuConfig{TypeMeta: header(KindGpuConfig), Sharing: s} }
	mig := func(s *MigDeviceSharing) Config {
		return &MigDeviceConfig{TypeMeta: header(KindMigDeviceConfig), Sharing: s}
	}
	byDefault := &TimeSlicingConfig{Interval: new(DefaultTimeSlice)}
	tests := map[string]struct{ in, want Config }{
		"gpu, exclusive stays":        {gpu(nil), gpu(nil)},
		"gpu, time slicing":           {gpu(&GpuSharing{Strategy: TimeSlicing}), gpu(&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: byDefault})},
		"gpu, empty interval":         {gpu(&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{}}), gpu(&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: byDefault})},
		"gpu, an interval stays":      {gpu(&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{Interval: new(LongTimeSlice)}}), gpu(&GpuSharing{Strategy: TimeSlicing, TimeSlicingConfig: &TimeSlicingConfig{Interval: new(LongTimeSlice)}})},
		"gpu, MPS":                    {gpu(&GpuSharing{Strategy: MPS}), gpu(&GpuSharing{Strategy: MPS, MPSConfig: &MPSConfig{}})},
		"gpu, MPS settings stay":      {gpu(&GpuSharing{Strategy: MPS, MPSConfig: mpsValue()}), gpu(&GpuSharing{Strategy: MPS, MPSConfig: mpsValue()})},
		"gpu, unknown strategy stays": {gpu(&GpuSharing{Strategy: "x"}), gpu(&GpuSharing{Strategy: "x"})},
		"mig, exclusive stays":        {mig(nil), mig(nil)},
		"mig, time slicing":           {mig(&MigDeviceSharing{Strategy: TimeSlicing}), mig(&MigDeviceSharing{Strategy: TimeSlicing})},
		"mig, MPS":                    {mig(&MigDeviceSharing{Strategy: MPS}), mig(&MigDeviceSharing{Strategy: MPS, MPSConfig: &MPSConfig{}})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.in.Defaulted()); diff != "" {
				t.Errorf("defaulted (-want +got):\n%s", diff)
			}
			if tt.in.Defaulted().SharingStrategy() != tt.in.SharingStrategy() {
				t.Error("defaulting changed the strategy")
			}
		})
	}
}

// A default must never be written into a value that another claim also uses.
func TestDefaultedSharesNothing(t *testing.T) {
	original := &GpuConfig{Sharing: &GpuSharing{
		Strategy: MPS, MPSConfig: mpsValue(), TimeSlicingConfig: &TimeSlicingConfig{Interval: new(ShortTimeSlice)},
	}}
	copied := original.Defaulted().(*GpuConfig)
	copied.Sharing.Strategy = "changed"
	*copied.Sharing.TimeSlicingConfig.Interval = "changed"
	*copied.Sharing.MPSConfig.DefaultActiveThreadPercentage = 1
	*copied.Sharing.MPSConfig.DefaultPinnedDeviceMemoryLimit = "changed"
	*copied.Sharing.MPSConfig.MultiUser = false
	copied.Sharing.MPSConfig.DefaultPerDevicePinnedMemoryLimit["0"] = "changed"
	want := &GpuConfig{Sharing: &GpuSharing{
		Strategy: MPS, MPSConfig: mpsValue(), TimeSlicingConfig: &TimeSlicingConfig{Interval: new(ShortTimeSlice)},
	}}
	if diff := cmp.Diff(want, original); diff != "" {
		t.Errorf("the original changed with its copy:\n%s", diff)
	}
}

func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		config     Config
		kind, typ  string
		strategies SharingStrategy
	}{
		{&GpuConfig{}, "GpuConfig", "gpu", ""},
		{&GpuConfig{Sharing: &GpuSharing{Strategy: MPS}}, "GpuConfig", "gpu", MPS},
		{&MigDeviceConfig{}, "MigDeviceConfig", "mig", ""},
		{&MigDeviceConfig{Sharing: &MigDeviceSharing{Strategy: TimeSlicing}}, "MigDeviceConfig", "mig", TimeSlicing},
	} {
		if tt.config.ConfigKind() != tt.kind || tt.config.DeviceType() != tt.typ || tt.config.SharingStrategy() != tt.strategies {
			t.Errorf("%+v is kind %q for %q with %q", tt.config, tt.config.ConfigKind(), tt.config.DeviceType(), tt.config.SharingStrategy())
		}
	}
}

package names_test

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/names"
)

// ret is go-nvml's return code.
type ret = nvml.Return

// The names are a vocabulary that manifests use: they are those of go-nvlib, value by value.
func TestNamesAreThoseOfGoNVLib(t *testing.T) {
	for value := range 40 {
		brand, architecture, mode := nvml.BrandType(value), nvml.DeviceArchitecture(value), uint32(value)
		d, err := device.New(&mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		}}).NewDevice(&mock.Device{
			GetBrandFunc:        func() (nvml.BrandType, ret) { return brand, nvml.SUCCESS },
			GetArchitectureFunc: func() (nvml.DeviceArchitecture, ret) { return architecture, nvml.SUCCESS },
			GetAddressingModeFunc: func() (nvml.DeviceAddressingMode, ret) {
				return nvml.DeviceAddressingMode{Value: mode}, nvml.SUCCESS
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		compare(t, "brand", value, d.GetBrandAsString, func() (string, error) { return names.Brand(brand) })
		compare(t, "architecture", value, d.GetArchitectureAsString, func() (string, error) { return names.Architecture(architecture) })
		compare(t, "addressing mode", value, d.GetAddressingModeAsString, func() (string, error) {
			return names.AddressingMode(nvml.DeviceAddressingMode{Value: mode})
		})
	}
}

func compare(t *testing.T, what string, value int, theirs, ours func() (string, error)) {
	t.Helper()
	want, wantErr := theirs()
	got, err := ours()
	if got != want || (err == nil) != (wantErr == nil) {
		t.Errorf("%s %d is %q, %v here and %q, %v there", what, value, got, err, want, wantErr)
	}
	if err != nil && !strings.Contains(err.Error(), what) {
		t.Errorf("%v does not say what it is about", err)
	}
}

func TestEnumerations(t *testing.T) {
	for version, want := range map[uint32]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6} {
		if got, err := names.NVLinkGeneration(version); got != want || err != nil {
			t.Errorf("NVLink version %d is generation %d, %v, want %d", version, got, err, want)
		}
	}
	for kind, want := range map[nvml.IntNvLinkDeviceType]inventory.Remote{0: inventory.RemoteGPU, 1: inventory.RemoteNPU, 2: inventory.RemoteSwitch, 255: inventory.RemoteUnknown} {
		if got, err := names.Remote(kind); got != want || err != nil {
			t.Errorf("remote type %d is %q, %v, want %q", kind, got, err, want)
		}
	}
	if _, err := names.FabricState(9); err == nil || !strings.Contains(err.Error(), "fabric state 9") {
		t.Errorf("an unknown fabric state gives %v", err)
	}
}

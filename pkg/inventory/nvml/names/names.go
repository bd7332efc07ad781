// Package names translates the numbers of NVML's enumerations. It is for package nvml. A number
// that has no name here is an error that gives the number: newer drivers have values that we do
// not know.
package names

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// The names below are those that NVIDIA's own DRA driver publishes (go-nvlib's
// GetBrandAsString, GetArchitectureAsString and GetAddressingModeAsString), since claims select
// by them.

// Brand is a product line, such as "Nvidia".
func Brand(brand nvml.BrandType) (string, error) {
	return named("brand", brand, map[nvml.BrandType]string{
		nvml.BRAND_UNKNOWN:             "Unknown",
		nvml.BRAND_QUADRO:              "Quadro",
		nvml.BRAND_TESLA:               "Tesla",
		nvml.BRAND_NVS:                 "NVS",
		nvml.BRAND_GRID:                "Grid",
		nvml.BRAND_GEFORCE:             "GeForce",
		nvml.BRAND_TITAN:               "Titan",
		nvml.BRAND_NVIDIA_VAPPS:        "NvidiaVApps",
		nvml.BRAND_NVIDIA_VPC:          "NvidiaVPC",
		nvml.BRAND_NVIDIA_VCS:          "NvidiaVCS",
		nvml.BRAND_NVIDIA_VWS:          "NvidiaVWS",
		nvml.BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
		nvml.BRAND_QUADRO_RTX:          "QuadroRTX",
		nvml.BRAND_NVIDIA_RTX:          "NvidiaRTX",
		nvml.BRAND_NVIDIA:              "Nvidia",
		nvml.BRAND_GEFORCE_RTX:         "GeForceRTX",
		nvml.BRAND_TITAN_RTX:           "TitanRTX",
	})
}

// Architecture is a GPU architecture, such as "Hopper".
func Architecture(architecture nvml.DeviceArchitecture) (string, error) {
	return named("architecture", architecture, map[nvml.DeviceArchitecture]string{
		nvml.DEVICE_ARCH_KEPLER:    "Kepler",
		nvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
		nvml.DEVICE_ARCH_PASCAL:    "Pascal",
		nvml.DEVICE_ARCH_VOLTA:     "Volta",
		nvml.DEVICE_ARCH_TURING:    "Turing",
		nvml.DEVICE_ARCH_AMPERE:    "Ampere",
		nvml.DEVICE_ARCH_ADA:       "Ada Lovelace",
		nvml.DEVICE_ARCH_HOPPER:    "Hopper",
		nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
		nvml.DEVICE_ARCH_RUBIN:     "Rubin",
		nvml.DEVICE_ARCH_UNKNOWN:   "Unknown",
	})
}

// AddressingMode is HMM, ATS or None.
func AddressingMode(mode nvml.DeviceAddressingMode) (string, error) {
	return named("addressing mode", nvml.DeviceAddressingModeType(mode.Value), map[nvml.DeviceAddressingModeType]string{
		nvml.DEVICE_ADDRESSING_MODE_NONE: "None",
		nvml.DEVICE_ADDRESSING_MODE_HMM:  "HMM",
		nvml.DEVICE_ADDRESSING_MODE_ATS:  "ATS",
	})
}

// Remote is what a link ends at.
func Remote(kind nvml.IntNvLinkDeviceType) (inventory.Remote, error) {
	return named("NVLink remote device type", kind, map[nvml.IntNvLinkDeviceType]inventory.Remote{
		nvml.NVLINK_DEVICE_TYPE_GPU:     inventory.RemoteGPU,
		nvml.NVLINK_DEVICE_TYPE_IBMNPU:  inventory.RemoteNPU,
		nvml.NVLINK_DEVICE_TYPE_SWITCH:  inventory.RemoteSwitch,
		nvml.NVLINK_DEVICE_TYPE_UNKNOWN: inventory.RemoteUnknown,
	})
}

// NVLinkGeneration reads nvmlNvlinkVersion_t (nvml.h of NVML 13.4), which counts 2.2 and 3.1 as
// versions of their own: it is not the generation.
func NVLinkGeneration(version uint32) (int, error) {
	return named("NVLink version", version, map[uint32]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6})
}

// FabricState is how far a registration with a fabric is.
func FabricState(state uint8) (inventory.FabricState, error) {
	return named("fabric state", state, map[uint8]inventory.FabricState{
		nvml.GPU_FABRIC_STATE_NOT_SUPPORTED: inventory.FabricNotSupported,
		nvml.GPU_FABRIC_STATE_NOT_STARTED:   inventory.FabricNotStarted,
		nvml.GPU_FABRIC_STATE_IN_PROGRESS:   inventory.FabricInProgress,
		nvml.GPU_FABRIC_STATE_COMPLETED:     inventory.FabricCompleted,
	})
}

// named translates a value of one of NVML's enumerations; newer drivers know values that we
// do not.
func named[K comparable, V any](what string, value K, names map[K]V) (V, error) {
	name, ok := names[value]
	if !ok {
		return name, fmt.Errorf("NVML gives the %s %v, which has no name here", what, value)
	}
	return name, nil
}

package v1beta1

import "k8s.io/apimachinery/pkg/util/validation/field"

// The names of the API. The group stays whatever the driver is called.
const (
	Group   = "resource.nvidia.com"
	Version = "v1beta1"

	APIVersion = Group + "/" + Version

	KindGpuConfig       = "GpuConfig"
	KindMigDeviceConfig = "MigDeviceConfig"
)

// Config is one decoded configuration. Values are never changed after decoding.
type Config interface {
	// ConfigKind is the kind in the API, "GpuConfig".
	ConfigKind() string
	// DeviceType is the published attribute "type" of the devices that the kind is for.
	DeviceType() string
	// SharingStrategy is empty where the configuration asks for no sharing.
	SharingStrategy() SharingStrategy
	// Defaulted returns a copy in which what was left out has its default.
	Defaulted() Config
	// Validate tells what is wrong, each with its field, value and what is allowed. It takes
	// configurations with and without defaults.
	Validate() field.ErrorList
}

// SharingStrategy says how several containers use one device at the same time.
type SharingStrategy string

// The strategies.
const (
	TimeSlicing SharingStrategy = "TimeSlicing"
	MPS         SharingStrategy = "MPS"
)

// TimeSlice is the length of a turn under time slicing.
type TimeSlice string

// The lengths; the GPU driver decides what they are in milliseconds.
const (
	DefaultTimeSlice TimeSlice = "Default"
	ShortTimeSlice   TimeSlice = "Short"
	MediumTimeSlice  TimeSlice = "Medium"
	LongTimeSlice    TimeSlice = "Long"
)

// TypeMeta says which version and kind an object is of. It is not the one of apimachinery,
// whose String method would hide the rest of a configuration in logs.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// GpuConfig configures full GPUs.
type GpuConfig struct {
	TypeMeta `json:",inline"`
	// Sharing is absent for exclusive use.
	Sharing *GpuSharing `json:"sharing,omitempty"`
}

// GpuSharing says how a full GPU is shared.
type GpuSharing struct {
	Strategy          SharingStrategy    `json:"strategy"`
	TimeSlicingConfig *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	MPSConfig         *MPSConfig         `json:"mpsConfig,omitempty"`
}

// MigDeviceConfig configures MIG devices.
type MigDeviceConfig struct {
	TypeMeta `json:",inline"`
	// Sharing is absent for exclusive use.
	Sharing *MigDeviceSharing `json:"sharing,omitempty"`
}

// MigDeviceSharing says how a MIG device is shared. Time slicing has no settings here: the
// hardware schedules the processes of a MIG device by itself.
type MigDeviceSharing struct {
	Strategy  SharingStrategy `json:"strategy"`
	MPSConfig *MPSConfig      `json:"mpsConfig,omitempty"`
}

// TimeSlicingConfig holds the settings of time slicing.
type TimeSlicingConfig struct {
	// Interval defaults to "Default".
	Interval *TimeSlice `json:"interval,omitempty"`
}

// MPSConfig holds the settings of an MPS control daemon.
type MPSConfig struct {
	// DefaultActiveThreadPercentage is the share of a GPU's threads for each client, 0 to 100.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit is each client's device memory on every device.
	DefaultPinnedDeviceMemoryLimit *Memory `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit overrides it for single devices. A key is the index of
	// the device among those that the configuration is for, in the order of the allocation
	// ("0"), a UUID ("GPU-…", "MIG-…"), or the name of a request
	// ("gpu", "gpu/large"), since the author of a claim cannot know UUIDs. All digits is
	// always an index. With several keys for a device a UUID wins over an index, and that over
	// a request, of which the longer name wins.
	DefaultPerDevicePinnedMemoryLimit map[string]Memory `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets processes of several users share the daemon.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// ConfigKind implements Config.
func (*GpuConfig) ConfigKind() string { return KindGpuConfig }

// DeviceType implements Config.
func (*GpuConfig) DeviceType() string { return "gpu" }

// SharingStrategy implements Config.
func (c *GpuConfig) SharingStrategy() SharingStrategy {
	if c.Sharing == nil {
		return ""
	}
	return c.Sharing.Strategy
}

// ConfigKind implements Config.
func (*MigDeviceConfig) ConfigKind() string { return KindMigDeviceConfig }

// DeviceType implements Config.
func (*MigDeviceConfig) DeviceType() string { return "mig" }

// SharingStrategy implements Config.
func (c *MigDeviceConfig) SharingStrategy() SharingStrategy {
	if c.Sharing == nil {
		return ""
	}
	return c.Sharing.Strategy
}

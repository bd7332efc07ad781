package claims

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/device"
)

// Settings say how one device is shared. The zero value is no sharing at all, for which nothing
// of the device is changed. At most one field is set.
type Settings struct {
	// TimeSlice is the length of a turn; empty where none was asked for.
	TimeSlice configapi.TimeSlice
	// MPS is nil where no control daemon was asked for.
	MPS *MPS
}

// MPS is what the control daemon of one device has to enforce, for every client alike. Equal
// values can share a daemon.
type MPS struct {
	// ActiveThreadPercentage is what each client may use of the device's threads, 0 to 100; nil
	// leaves it to the daemon, which means all.
	ActiveThreadPercentage *int
	// PinnedMemoryBytes is each client's limit of memory on this device in bytes, at least 1 MiB;
	// 0 is no limit. It comes from the entry for the device's UUID, for its index, for its
	// request, for the main request of its alternative, or the default, whichever is there first.
	PinnedMemoryBytes int64
	// MultiUser lets clients of several users in at once.
	MultiUser bool
	// Group are the devices of the claim that share this configuration, this one among them, in
	// the order of the allocation: a program that uses several of them can have only one daemon.
	Group []device.Identity
	// GroupMemoryBytes are the PinnedMemoryBytes of the devices of Group.
	GroupMemoryBytes []int64
}

// Equal tells whether a daemon that runs with one does what the other wants. Groups are not
// compared.
func (m *MPS) Equal(other *MPS) bool {
	if m == nil || other == nil {
		return m == other
	}
	percentage := func(m *MPS) int {
		if m.ActiveThreadPercentage == nil {
			return -1
		}
		return *m.ActiveThreadPercentage
	}
	return percentage(m) == percentage(other) && m.PinnedMemoryBytes == other.PinnedMemoryBytes && m.MultiUser == other.MultiUser
}

// settle fills in the settings of the planned devices from their configurations. The plan has
// all devices of the claim; requests are the names of the claim's requests.
func settle(planned []Device, requests []string) (notices []string, errs []error) {
	for i := range planned {
		if err := settleShare(&planned[i]); err != nil {
			errs = append(errs, err)
		}
	}
	for _, group := range groups(planned) {
		mps := mpsOf(group.config)
		switch {
		case group.config.SharingStrategy() == configapi.TimeSlicing:
			notices = append(notices, settleTimeSlice(group)...)
		case mps != nil:
			errs = append(errs, settleMPS(group.devices, mps, requests)...)
		}
	}
	return notices, errs
}

// settleShare gives a share of a device the settings that the node declares for it. A device
// that was allocated whole stays so until its claim ends, whatever is declared by now.
func settleShare(d *Device) error {
	how := device.SharingOf(d.Device)
	if how == nil || d.ShareID == nil || d.AdminAccess {
		return nil
	}
	var strategy configapi.SharingStrategy
	if d.Config != nil {
		strategy = d.Config.SharingStrategy()
	}
	byMPS := how.Enforcement == device.EnforcedByMPS
	if strategy == configapi.MPS || strategy != "" && byMPS {
		return &Error{
			Reason: ReasonConfig, Request: d.Request, Device: d.Device.Name(),
			Err: fmt.Errorf("sharing.strategy: %q is not allowed for a share of device %s, which the node declares as shared with enforcement %q for all its claims alike: leave out sharing",
				strategy, d.Device.Name(), how.Enforcement),
		}
	}
	if byMPS {
		limit := int64(how.PartBytes(device.MemoryOf(d.Device)))
		d.Settings.MPS = &MPS{
			ActiveThreadPercentage: how.ThreadPercentage,
			PinnedMemoryBytes:      limit,
			// The programs of other namespaces run as other users.
			MultiUser:        true,
			Group:            []device.Identity{d.Device.Identity()},
			GroupMemoryBytes: []int64{limit},
		}
	}
	return nil
}

// configGroup is a configuration with the devices that it is for.
type configGroup struct {
	config  configapi.Config
	devices []*Device
}

// groups sorts the owned devices by configuration. One that is decoded once is one value.
func groups(planned []Device) []*configGroup {
	var out []*configGroup
	for i := range planned {
		d := &planned[i]
		if d.Config == nil || d.AdminAccess || d.Settings.MPS != nil {
			continue
		}
		at := slices.IndexFunc(out, func(g *configGroup) bool { return g.config == d.Config })
		if at < 0 {
			at = len(out)
			out = append(out, &configGroup{config: d.Config})
		}
		out[at].devices = append(out[at].devices, d)
	}
	return out
}

// settleTimeSlice gives whole GPUs their interval. Partitions have none: the hardware gives turns
// to the programs of one by itself, and an interval of its GPU would reach its other tenants.
func settleTimeSlice(group *configGroup) (notices []string) {
	gpu, ok := group.config.(*configapi.GpuConfig)
	for _, d := range group.devices {
		if ok {
			d.Settings.TimeSlice = *gpu.Sharing.TimeSlicingConfig.Interval
			continue
		}
		notices = append(notices, fmt.Sprintf(
			"request %q: sharing.strategy %q has no effect on device %s: the programs of a MIG device take turns by themselves and there is nothing to set",
			d.Request, configapi.TimeSlicing, d.Device.Name()))
	}
	return notices
}

func mpsOf(config configapi.Config) *configapi.MPSConfig {
	if config.SharingStrategy() != configapi.MPS {
		return nil
	}
	switch c := config.(type) {
	case *configapi.GpuConfig:
		return c.Sharing.MPSConfig
	case *configapi.MigDeviceConfig:
		return c.Sharing.MPSConfig
	}
	return nil
}

func settleMPS(devices []*Device, config *configapi.MPSConfig, requests []string) []error {
	errs := checkKeys(devices, config, requests)
	var group []device.Identity
	var limits []int64
	for i, d := range devices {
		group = append(group, d.Device.Identity())
		limits = append(limits, limitOf(i, d, config))
	}
	for i, d := range devices {
		mps := &MPS{
			ActiveThreadPercentage: config.DefaultActiveThreadPercentage,
			PinnedMemoryBytes:      limits[i],
			MultiUser:              config.MultiUser != nil && *config.MultiUser,
			Group:                  group,
			GroupMemoryBytes:       limits,
		}
		d.Settings.MPS = mps
		if err := checkAbility(d, mps); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// identified is a device whose UUID is known beforehand; partitions that are made on demand
// have none.
type identified interface{ UUID() string }

// limitOf finds the limit of a device, the i-th of its configuration, in bytes.
func limitOf(i int, d *Device, config *configapi.MPSConfig) int64 {
	main, _, _ := strings.Cut(d.Request, "/")
	keys := []string{strconv.Itoa(i), d.Request, main}
	if known, ok := d.Device.(identified); ok {
		keys = slices.Insert(keys, 0, known.UUID())
	}
	for _, key := range keys {
		if limit, ok := config.DefaultPerDevicePinnedMemoryLimit[key]; ok {
			return bytesOf(limit)
		}
	}
	if config.DefaultPinnedDeviceMemoryLimit != nil {
		return bytesOf(*config.DefaultPinnedDeviceMemoryLimit)
	}
	return 0
}

// bytesOf is of a value that was validated.
func bytesOf(m configapi.Memory) int64 {
	n, _ := m.Bytes()
	return n
}

// checkKeys finds keys that can mean no device: a limit that is never applied is not a limit.
// UUIDs are not looked at, since a class may list those of all nodes; nor are the requests that
// a class names, since it does not know the claim.
func checkKeys(devices []*Device, config *configapi.MPSConfig, requests []string) []error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(config.DefaultPerDevicePinnedMemoryLimit)) {
		main, _, _ := strings.Cut(key, "/")
		index, notIndex := strconv.Atoi(key)
		isUUID := strings.HasPrefix(key, "GPU-") || strings.HasPrefix(key, "MIG-")
		var problem string
		switch {
		case notIndex == nil && index >= len(devices):
			problem = fmt.Sprintf("the config is for %d devices of the claim, so the index must be from 0 to %d", len(devices), len(devices)-1)
		case notIndex == nil || isUUID || slices.Contains(requests, main):
			continue
		default:
			problem = fmt.Sprintf("the claim has no such request (it has: %s)", strings.Join(requests, ", "))
		}
		errs = append(errs, &Error{
			Reason: ReasonConfig, Request: devices[0].Request, Device: devices[0].Device.Name(),
			Err: fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[%s]: %s", key, problem),
		})
	}
	return errs
}

// aged is a device that knows its CUDA compute capability; zero where the driver does not tell.
type aged interface {
	ComputeCapability() (major, minor int)
}

// voltaMajor is the compute capability with which limits and several users at one daemon came:
// NVIDIA's documentation of MPS, "Volta MPS".
const voltaMajor = 7

func checkAbility(d *Device, mps *MPS) error {
	known, ok := d.Device.(aged)
	if !ok || mps.ActiveThreadPercentage == nil && mps.PinnedMemoryBytes == 0 && !mps.MultiUser {
		return nil
	}
	major, minor := known.ComputeCapability()
	if major == 0 || major >= voltaMajor {
		return nil
	}
	return &Error{
		Reason: ReasonConfig, Request: d.Request, Device: d.Device.Name(),
		Err: fmt.Errorf("sharing.mpsConfig: device %s has CUDA compute capability %d.%d, and limits or multiUser need %d.0 or later: leave them out, or select newer GPUs",
			d.Device.Name(), major, minor, voltaMajor),
	}
}

// requestNames are the names of a claim's requests.
func requestNames(claim *resourceapi.ResourceClaim) []string {
	var names []string
	for _, r := range claim.Spec.Devices.Requests {
		names = append(names, r.Name)
	}
	return names
}

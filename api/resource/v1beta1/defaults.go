package v1beta1

import "maps"

// Defaulted implements Config: strategy TimeSlicing gets the interval "Default", strategy MPS
// an empty mpsConfig.
func (c *GpuConfig) Defaulted() Config {
	out := *c
	if c.Sharing == nil {
		return &out
	}
	sharing := *c.Sharing
	out.Sharing = &sharing
	sharing.MPSConfig = c.Sharing.MPSConfig.clone()
	if t := c.Sharing.TimeSlicingConfig; t != nil {
		sharing.TimeSlicingConfig = &TimeSlicingConfig{Interval: cloned(t.Interval)}
	}
	switch sharing.Strategy {
	case TimeSlicing:
		if sharing.TimeSlicingConfig == nil {
			sharing.TimeSlicingConfig = &TimeSlicingConfig{}
		}
		if sharing.TimeSlicingConfig.Interval == nil {
			sharing.TimeSlicingConfig.Interval = new(DefaultTimeSlice)
		}
	case MPS:
		if sharing.MPSConfig == nil {
			sharing.MPSConfig = &MPSConfig{}
		}
	}
	return &out
}

// Defaulted implements Config: strategy MPS gets an empty mpsConfig.
func (c *MigDeviceConfig) Defaulted() Config {
	out := *c
	if c.Sharing == nil {
		return &out
	}
	sharing := *c.Sharing
	out.Sharing = &sharing
	sharing.MPSConfig = c.Sharing.MPSConfig.clone()
	if sharing.Strategy == MPS && sharing.MPSConfig == nil {
		sharing.MPSConfig = &MPSConfig{}
	}
	return &out
}

func (c *MPSConfig) clone() *MPSConfig {
	if c == nil {
		return nil
	}
	return &MPSConfig{
		DefaultActiveThreadPercentage:     cloned(c.DefaultActiveThreadPercentage),
		DefaultPinnedDeviceMemoryLimit:    cloned(c.DefaultPinnedDeviceMemoryLimit),
		DefaultPerDevicePinnedMemoryLimit: maps.Clone(c.DefaultPerDevicePinnedMemoryLimit),
		MultiUser:                         cloned(c.MultiUser),
	}
}

func cloned[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

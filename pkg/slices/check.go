package slices

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
)

// checker holds what the API's rules need to know of the pool so far.
type checker struct {
	names     map[string]bool
	counters  []resourceapi.CounterSet
	sets      map[string]resourceapi.CounterSet
	omissions []device.Omission
}

// newChecker takes the counter sets that the API takes.
func newChecker(counters []resourceapi.CounterSet) *checker {
	c := &checker{names: map[string]bool{}, sets: map[string]resourceapi.CounterSet{}}
	for _, set := range counters {
		_, twice := c.sets[set.Name]
		err := checkCounters(set.Name, set.Counters, resourceapi.ResourceSliceMaxCountersPerCounterSet)
		if twice {
			err = errors.New("another counter set has this name")
		}
		if err != nil {
			c.omit("", "counter set "+set.Name, set.Name, err.Error())
			continue
		}
		c.sets[set.Name] = set
		c.counters = append(c.counters, set)
	}
	return c
}

func (c *checker) omit(dev, name, value, reason string) {
	c.omissions = append(c.omissions, device.Omission{Device: dev, Name: name, Value: value, Reason: reason})
}

// omitMissing reports the devices that the layout had no room for.
func (c *checker) omitMissing(groups []Group, out []resourceslice.Slice) {
	placed := map[string]bool{}
	for _, s := range out {
		for _, d := range s.Devices {
			placed[d.Name] = true
		}
	}
	for _, g := range groups {
		for _, d := range g.Devices {
			if !placed[d.Name] {
				c.omit(d.Name, "", d.Name, fmt.Sprintf("its GPU has more than %d devices, and this Kubernetes release wants them in one slice", MaxDevices))
			}
		}
	}
}

// admit strips a device of what the API would refuse and tells whether it can be published.
func (c *checker) admit(d *resourceapi.Device) bool {
	if err := c.checkIdentity(*d); err != nil {
		c.omit(d.Name, "", d.Name, err.Error())
		return false
	}
	c.names[d.Name] = true
	c.stripAttributes(d)
	c.stripTaints(d)
	return true
}

// checkIdentity finds what only leaving out the device can heal: a device that consumes less
// than it uses would be given to two owners.
func (c *checker) checkIdentity(d resourceapi.Device) error {
	if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
		return fmt.Errorf("the name is not a DNS label: %s", problems[0])
	}
	if c.names[d.Name] {
		return errors.New("another device has this name")
	}
	if n := len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		return fmt.Errorf("it has %d capacities, at most %d are allowed", n, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
	if n := len(d.ConsumesCounters); n > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		return fmt.Errorf("it consumes from %d counter sets, at most %d are allowed", n, resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice)
	}
	used := map[string]bool{}
	for _, use := range d.ConsumesCounters {
		set, ok := c.sets[use.CounterSet]
		if !ok || used[use.CounterSet] {
			return fmt.Errorf("it consumes from counter set %q, which is unknown or named twice", use.CounterSet)
		}
		used[use.CounterSet] = true
		if err := checkCounters(use.CounterSet, use.Counters, resourceapi.ResourceSliceMaxCountersPerDeviceCounterConsumption); err != nil {
			return err
		}
		for name := range use.Counters {
			if _, ok := set.Counters[name]; !ok {
				return fmt.Errorf("it consumes counter %q, which counter set %q does not have", name, use.CounterSet)
			}
		}
	}
	return nil
}

func checkCounters(set string, counters map[string]resourceapi.Counter, most int) error {
	if len(validation.IsDNS1123Label(set)) > 0 {
		return fmt.Errorf("counter set %q: the name is not a DNS label", set)
	}
	if len(counters) == 0 || len(counters) > most {
		return fmt.Errorf("counter set %q: %d counters, 1 to %d are allowed", set, len(counters), most)
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("counter set %q: counter %q is not a DNS label", set, name)
		}
	}
	return nil
}

// stripAttributes leaves out bad attributes and capacities, and then as many attributes as the
// limits want: first those that the minimal vocabulary does not have, from the last name on.
func (c *checker) stripAttributes(d *resourceapi.Device) {
	// The maps may be the device's own.
	d.Attributes, d.Capacity = maps.Clone(d.Attributes), maps.Clone(d.Capacity)
	names := slices.Sorted(maps.Keys(d.Attributes))
	for _, name := range names {
		if err := device.CheckAttribute(name, d.Attributes[name]); err != nil {
			c.omit(d.Name, string(name), "", err.Error())
			delete(d.Attributes, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		if err := device.CheckName(name); err != nil {
			c.omit(d.Name, string(name), "", err.Error())
			delete(d.Capacity, name)
		}
	}
	values := 0
	for _, v := range d.Attributes {
		values += device.CountValues(v)
	}
	slices.Reverse(names)
	slices.SortStableFunc(names, func(a, b resourceapi.QualifiedName) int {
		return compareBool(device.InMinimal(string(a)), device.InMinimal(string(b)))
	})
	for _, name := range names {
		total := len(d.Attributes) + len(d.Capacity)
		if total <= resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice && values <= resourceapi.ResourceSliceMaxAttributeValuesPerDevice {
			return
		}
		if v, ok := d.Attributes[name]; ok {
			c.omit(d.Name, string(name), "", fmt.Sprintf("%d attributes and capacities with %d values, at most %d with %d are allowed", total, values,
				resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice, resourceapi.ResourceSliceMaxAttributeValuesPerDevice))
			values -= device.CountValues(v)
			delete(d.Attributes, name)
		}
	}
}

// stripTaints leaves out bad taints, and of too many the least severe.
func (c *checker) stripTaints(d *resourceapi.Device) {
	var good []resourceapi.DeviceTaint
	for _, taint := range d.Taints {
		if err := checkTaint(taint); err != nil {
			c.omit(d.Name, "taint "+taint.Key, taint.Value, err.Error())
			continue
		}
		good = append(good, taint)
	}
	severity := []resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone}
	if len(good) > resourceapi.DeviceTaintsMaxLength {
		slices.SortStableFunc(good, func(a, b resourceapi.DeviceTaint) int {
			return slices.Index(severity, a.Effect) - slices.Index(severity, b.Effect)
		})
		for _, taint := range good[resourceapi.DeviceTaintsMaxLength:] {
			c.omit(d.Name, "taint "+taint.Key, taint.Value, fmt.Sprintf("%d taints, at most %d are allowed", len(good), resourceapi.DeviceTaintsMaxLength))
		}
		good = sortedTaints(good[:resourceapi.DeviceTaintsMaxLength])
	}
	d.Taints = good
}

func checkTaint(t resourceapi.DeviceTaint) error {
	switch {
	case len(validation.IsQualifiedName(t.Key)) > 0:
		return fmt.Errorf("key %q is not a label key", t.Key)
	case len(validation.IsValidLabelValue(t.Value)) > 0:
		return fmt.Errorf("value %q is not a label value", t.Value)
	case t.Effect != resourceapi.DeviceTaintEffectNone && t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute:
		return fmt.Errorf("effect %q is none of None, NoSchedule and NoExecute", t.Effect)
	}
	return nil
}

package v1beta1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func sharingPath() *field.Path { return field.NewPath("sharing") }

func strategies() []SharingStrategy { return []SharingStrategy{MPS, TimeSlicing} }

func timeSlices() []TimeSlice {
	return []TimeSlice{DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice}
}

// Validate implements Config.
func (c *GpuConfig) Validate() field.ErrorList {
	if c.Sharing == nil {
		return nil
	}
	errs := validateStrategy(c.Sharing.Strategy)
	if t := c.Sharing.TimeSlicingConfig; t != nil {
		path := sharingPath().Child("timeSlicingConfig")
		errs = append(errs, validateBelongs(path, c.Sharing.Strategy, TimeSlicing)...)
		if t.Interval != nil && !slices.Contains(timeSlices(), *t.Interval) {
			errs = append(errs, field.NotSupported(path.Child("interval"), cut(*t.Interval), timeSlices()))
		}
	}
	return append(errs, validateMPS(c.Sharing.MPSConfig, c.Sharing.Strategy)...)
}

// Validate implements Config.
func (c *MigDeviceConfig) Validate() field.ErrorList {
	if c.Sharing == nil {
		return nil
	}
	return append(validateStrategy(c.Sharing.Strategy), validateMPS(c.Sharing.MPSConfig, c.Sharing.Strategy)...)
}

func validateStrategy(strategy SharingStrategy) field.ErrorList {
	path := sharingPath().Child("strategy")
	switch {
	case strategy == "":
		return field.ErrorList{field.Required(path, `allowed are "MPS" and "TimeSlicing"; leave out sharing for exclusive use`)}
	case !slices.Contains(strategies(), strategy):
		return field.ErrorList{field.NotSupported(path, cut(strategy), strategies())}
	}
	return nil
}

// validateBelongs refuses the settings of one strategy under another: they would be ignored.
func validateBelongs(path *field.Path, strategy, owner SharingStrategy) field.ErrorList {
	if strategy == owner {
		return nil
	}
	return field.ErrorList{field.Forbidden(path,
		fmt.Sprintf("goes only with strategy %q, but the strategy is %q: remove one of them", owner, cut(strategy)))}
}

func validateMPS(c *MPSConfig, strategy SharingStrategy) field.ErrorList {
	if c == nil {
		return nil
	}
	path := sharingPath().Child("mpsConfig")
	errs := validateBelongs(path, strategy, MPS)
	if p := c.DefaultActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, field.Invalid(path.Child("defaultActiveThreadPercentage"), *p, "must be from 0 to 100"))
	}
	if m := c.DefaultPinnedDeviceMemoryLimit; m != nil {
		errs = append(errs, validateMemory(path.Child("defaultPinnedDeviceMemoryLimit"), *m)...)
	}
	limits := path.Child("defaultPerDevicePinnedMemoryLimit")
	// Sorted, so that the same mistake gives the same message and Events can be counted.
	for _, key := range slices.Sorted(maps.Keys(c.DefaultPerDevicePinnedMemoryLimit)) {
		if !validDeviceKey(key) {
			errs = append(errs, field.Invalid(limits, cut(key),
				`a key must be an index within the devices of the config ("0"), a UUID ("GPU-…" or "MIG-…") or the name of a request ("gpu" or "gpu/large")`))
		}
		errs = append(errs, validateMemory(limits.Key(inPath(key)), c.DefaultPerDevicePinnedMemoryLimit[key])...)
	}
	return errs
}

func validateMemory(path *field.Path, m Memory) field.ErrorList {
	if _, err := m.Bytes(); err != nil {
		return field.ErrorList{field.Invalid(path, string(cut(m)), err.Error())}
	}
	return nil
}

// maxIndex is the last index that a device of a claim can have: a claim holds at most 32.
const maxIndex = 31

func validDeviceKey(key string) bool {
	if strings.Trim(key, "0123456789") == "" {
		index, err := strconv.Atoi(key)
		return err == nil && index <= maxIndex && strconv.Itoa(index) == key
	}
	for _, prefix := range []string{"GPU-", "MIG-"} {
		if id, ok := strings.CutPrefix(key, prefix); ok {
			return len(id) == len(uuid.Nil.String()) && uuid.Validate(id) == nil
		}
	}
	request, sub, isSub := strings.Cut(key, "/")
	return len(validation.IsDNS1123Label(request)) == 0 && (!isSub || len(validation.IsDNS1123Label(sub)) == 0)
}

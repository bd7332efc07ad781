package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// version is the only one of the format.
const version = "v1"

// all is the text that selects every GPU.
const all = "all"

// Bounds of a file; a ConfigMap is no larger.
const (
	maxFile  = 1 << 20
	maxCount = 1 << 10
	maxName  = 63
)

// File is a set of named configurations.
type File struct{ configs map[string][]rule }

// rule is one entry of a configuration.
type rule struct {
	Filter   texts          `json:"device-filter,omitempty"`
	Devices  *devices       `json:"devices"`
	Enabled  *bool          `json:"mig-enabled"`
	Profiles map[string]int `json:"mig-devices,omitzero"`
}

type document struct {
	Version string            `json:"version"`
	Configs map[string][]rule `json:"mig-configs"`
}

// Parse reads a file in YAML or JSON. Its errors name the configuration, the entry (from 0 on)
// and the field. Nothing is guessed: unknown fields are errors.
func Parse(data []byte) (File, error) {
	if len(data) > maxFile {
		return File{}, fmt.Errorf("MIG layouts: %d bytes, at most %d are taken", len(data), maxFile)
	}
	var d document
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return File{}, fmt.Errorf("MIG layouts: %w", err)
	}
	if d.Version != version {
		return File{}, fmt.Errorf("MIG layouts: version %q is not known, want %q", d.Version, version)
	}
	if len(d.Configs) == 0 {
		return File{}, errors.New("MIG layouts: mig-configs has no configuration")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(d.Configs)) {
		if err := check(name, d.Configs[name]); err != nil {
			errs = append(errs, fmt.Errorf("MIG layouts: mig-configs[%q]: %w", name, err))
		}
	}
	return File{configs: d.Configs}, errors.Join(errs...)
}

func check(name string, rules []rule) error {
	// The name is a label's value.
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the name has %d characters, want 1 to %d", len(name), maxName)
	}
	if len(rules) == 0 {
		return errors.New("it has no entry")
	}
	for i, r := range rules {
		if err := r.check(); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		// "0 of this profile" is the same as not naming it.
		maps.DeleteFunc(r.Profiles, func(_ string, count int) bool { return count == 0 })
	}
	return nil
}

func (r rule) check() error {
	switch {
	case r.Devices == nil:
		return errors.New(`devices is missing: want "all" or a list of numbers`)
	case r.Enabled == nil:
		return errors.New("mig-enabled is missing: want true or false")
	case *r.Enabled && r.Profiles == nil:
		return errors.New("mig-devices is missing: with mig-enabled true, name profiles and their counts, or {} for none")
	case !*r.Enabled && len(r.Profiles) > 0:
		return errors.New("mig-devices has profiles although mig-enabled is false")
	}
	for _, filter := range r.Filter {
		if _, err := deviceID(filter); err != nil {
			return err
		}
	}
	for _, profile := range slices.Sorted(maps.Keys(r.Profiles)) {
		if err := checkProfile(profile, r.Profiles[profile]); err != nil {
			return err
		}
	}
	return nil
}

func checkProfile(name string, count int) error {
	first, _, _ := strings.Cut(name, ".")
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("mig-devices: %q is no profile", name)
	case strings.HasSuffix(first, "c") && strings.Trim(first, "0123456789") == "c":
		return fmt.Errorf("mig-devices: %q divides a GPU instance into compute instances, which this driver does not offer: name the profile of the GPU instance", name)
	case count < 0 || count > maxCount:
		return fmt.Errorf("mig-devices: %d of %q, want 0 to %d", count, name, maxCount)
	}
	return nil
}

// deviceID reads "0x233010DE": the PCI device in the upper half, the vendor in the lower. The
// empty text is any.
func deviceID(filter string) (uint32, error) {
	if filter == "" {
		return 0, nil
	}
	digits, prefixed := strings.CutPrefix(strings.ToLower(filter), "0x")
	id, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || !prefixed {
		return 0, fmt.Errorf(`device-filter: %q is not of the form "0x233010DE" (PCI device and vendor)`, filter)
	}
	return uint32(id), nil
}

// matches tells whether the entry is for the number-th GPU of a node, of that PCI id.
func (r rule) matches(number int, id uint32) bool {
	if !r.Devices.all && !slices.Contains(r.Devices.numbers, number) {
		return false
	}
	return len(r.Filter) == 0 || slices.ContainsFunc(r.Filter, func(filter string) bool {
		wanted, err := deviceID(filter)
		return err == nil && (wanted == 0 || wanted == id)
	})
}

// Names are those of the configurations, sorted.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.configs)) }

// texts is one text or a list of them.
type texts []string

// UnmarshalJSON takes both forms.
func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = texts{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil {
		return errors.New("device-filter: want a text or a list of texts")
	}
	*t = list
	return nil
}

// devices is every GPU or those of some numbers.
type devices struct {
	all     bool
	numbers []int
}

// UnmarshalJSON takes "all" and lists of numbers.
func (d *devices) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil && text == all {
		*d = devices{all: true}
		return nil
	}
	var numbers []int
	if err := json.Unmarshal(data, &numbers); err != nil || numbers == nil {
		return fmt.Errorf(`devices: want "all" or a list of numbers, not %s`, data)
	}
	if i := slices.IndexFunc(numbers, func(n int) bool { return n < 0 }); i >= 0 {
		return fmt.Errorf("devices: %d is no number of a GPU", numbers[i])
	}
	*d = devices{numbers: numbers}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (d devices) MarshalJSON() ([]byte, error) {
	if d.all {
		return json.Marshal(all)
	}
	return json.Marshal(d.numbers)
}

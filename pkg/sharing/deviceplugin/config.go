// Package deviceplugin reads the configuration file of NVIDIA's device plugin, version v1, so
// that a cluster which shares GPUs by it can go on with the file that it has. Its replicas become
// shares of one device, and never copies of it. It is for the plugin's settings; it is pure and
// must not know devices, claims or files.
//
// Only the sharing part means something here. Flags are those of another program; of them the
// MIG strategy is read, since it decides what the resource nvidia.com/gpu stands for.
package deviceplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// Config is what the file means.
type Config struct {
	// Declarations are the shared devices, in the order of the file.
	Declarations []shares.Declaration
	// RenameByDefault wants shared devices under a resource name of their own, "….shared".
	RenameByDefault bool
	// FailRequestsGreaterThanOne wants containers refused that ask for two shares: they would
	// not have twice the GPU.
	FailRequestsGreaterThanOne bool
}

// version is the only one that there is.
const version = "v1"

// The MIG strategies: what GPUs in MIG mode are offered as.
const (
	migNone   = "none"
	migSingle = "single"
	migMixed  = "mixed"
)

type file struct {
	Version string `json:"version"`
	Flags   struct {
		MIGStrategy string `json:"migStrategy"`
	} `json:"flags"`
	Sharing json.RawMessage `json:"sharing"`
}

type sharing struct {
	TimeSlicing *strategy `json:"timeSlicing"`
	MPS         *strategy `json:"mps"`
}

type strategy struct {
	RenameByDefault            bool       `json:"renameByDefault"`
	FailRequestsGreaterThanOne bool       `json:"failRequestsGreaterThanOne"`
	Resources                  []resource `json:"resources"`
}

type resource struct {
	Name string `json:"name"`
	// Rename is the resource's name when it is shared: a matter of the DeviceClasses here.
	Rename   string          `json:"rename"`
	Devices  json.RawMessage `json:"devices"`
	Replicas int             `json:"replicas"`
}

// Parse reads the file's text, YAML or JSON; an empty text is an empty Config. An unknown field
// under sharing is an error, as is whatever cannot be done here. Errors name the field.
func Parse(text string) (Config, error) {
	if strings.TrimSpace(text) == "" {
		return Config{}, nil
	}
	s, migStrategy, err := decode(text)
	if err != nil {
		return Config{}, err
	}
	var out Config
	for _, way := range []struct {
		field string
		strategy
		enforcement device.Enforcement
	}{
		{"sharing.timeSlicing", orNone(s.TimeSlicing), device.NotEnforced},
		{"sharing.mps", orNone(s.MPS), device.EnforcedByMPS},
	} {
		out.RenameByDefault = out.RenameByDefault || way.RenameByDefault
		out.FailRequestsGreaterThanOne = out.FailRequestsGreaterThanOne || way.FailRequestsGreaterThanOne
		for i, r := range way.Resources {
			declaration, err := r.declaration(way.enforcement, migStrategy)
			if err != nil {
				return Config{}, fmt.Errorf("%s.resources[%d].%w", way.field, i, err)
			}
			if declaration != nil {
				out.Declarations = append(out.Declarations, *declaration)
			}
		}
	}
	return out, nil
}

// decode reads the sharing part and the MIG strategy.
func decode(text string) (s sharing, migStrategy string, err error) {
	var f file
	if err := yaml.Unmarshal([]byte(text), &f); err != nil {
		return s, "", fmt.Errorf("not a configuration of the device plugin: %w", err)
	}
	if f.Version != version {
		return s, "", fmt.Errorf("version: %q is not allowed: use %q", f.Version, version)
	}
	strategies := []string{"", migNone, migSingle, migMixed}
	if !slices.Contains(strategies, f.Flags.MIGStrategy) {
		return s, "", fmt.Errorf("flags.migStrategy: %q is not allowed: use %s", f.Flags.MIGStrategy, strings.Join(strategies[1:], ", "))
	}
	if len(f.Sharing) > 0 {
		if err := yaml.UnmarshalStrict(f.Sharing, &s); err != nil {
			return s, "", fmt.Errorf("sharing: %w", err)
		}
	}
	if len(orNone(s.TimeSlicing).Resources) > 0 && len(orNone(s.MPS).Resources) > 0 {
		return s, "", errors.New("sharing: timeSlicing and mps together are not allowed: remove one of them")
	}
	return s, f.Flags.MIGStrategy, nil
}

func orNone(s *strategy) strategy {
	if s == nil {
		return strategy{}
	}
	return *s
}

// declaration is what one resource means; nil for one replica, which is no sharing.
func (r resource) declaration(enforcement device.Enforcement, migStrategy string) (*shares.Declaration, error) {
	filter, err := r.filter(migStrategy)
	if err != nil {
		return nil, err
	}
	if r.Replicas == 1 {
		return nil, nil
	}
	out := shares.Declaration{Devices: filter, Enforcement: enforcement, Replicas: r.Replicas}
	if r.Replicas > 0 && enforcement == device.EnforcedByMPS {
		// That program gives each client an equal part of the threads, too.
		out.ThreadPercentage = new(max(1, 100/r.Replicas))
	}
	if r.Replicas == 0 {
		return nil, fmt.Errorf("replicas: 0 is not allowed: use the number of shares, from 1 to %d", shares.MaxReplicas)
	}
	if err := shares.Validate([]shares.Declaration{out}); err != nil {
		return nil, err
	}
	return &out, nil
}

// The names of resources.
const (
	resourceGPU = "nvidia.com/gpu"
	resourceMIG = "nvidia.com/mig-"
)

// filter selects the devices that a resource stands for.
func (r resource) filter(migStrategy string) (shares.Filter, error) {
	var f shares.Filter
	profile, isMIG := strings.CutPrefix(r.Name, resourceMIG)
	switch {
	case isMIG && profile != "":
		// "1g.10gb.me" is the profile 1g.10gb+me: a resource's name has no plus.
		f.Profiles = []string{strings.Replace(profile, ".me", "+me", 1)}
	case r.Name == resourceGPU && migStrategy == migSingle:
		f.Profiles = []string{"*"}
	case r.Name != resourceGPU:
		return f, fmt.Errorf("name: %q is not allowed: use %s, or %s and a profile, such as %s1g.10gb", r.Name, resourceGPU, resourceMIG, resourceMIG)
	}
	return f, r.selectDevices(&f)
}

// selectDevices reads the field devices: "all", a number of them, or a list of indices and UUIDs.
func (r resource) selectDevices(f *shares.Filter) error {
	var all string
	var count int
	var list []string
	switch {
	case len(r.Devices) == 0 || string(r.Devices) == "null":
		return nil
	case json.Unmarshal(r.Devices, &all) == nil:
		if all != "all" {
			return fmt.Errorf("devices: %q is not allowed: use all, a number, or a list of indices and UUIDs", all)
		}
		return nil
	case json.Unmarshal(r.Devices, &count) == nil:
		if count < 1 || count > maxGPUs {
			return fmt.Errorf("devices: %d is not allowed: use a number from 1 to %d", count, maxGPUs)
		}
		for i := range count {
			f.Indices = append(f.Indices, i)
		}
		return nil
	case json.Unmarshal(r.Devices, &list) != nil || len(list) == 0:
		return fmt.Errorf("devices: %s is not allowed: use all, a number, or a list of indices and UUIDs, each in quotes", cut(r.Devices))
	}
	return selectList(list, f)
}

// selectList reads a list of indices or of UUIDs.
func selectList(list []string, f *shares.Filter) error {
	for _, ref := range list {
		index, err := strconv.Atoi(ref)
		isUUID := strings.HasPrefix(ref, "GPU-") || strings.HasPrefix(ref, "MIG-")
		switch {
		case err == nil && index >= 0 && index < maxGPUs:
			f.Indices = append(f.Indices, index)
		case isUUID:
			f.UUIDs = append(f.UUIDs, ref)
		default:
			return fmt.Errorf("devices: %q is not allowed: use an index (\"0\") or a UUID; MIG devices have no index that lasts, so name them by UUID or profile", ref)
		}
	}
	if len(f.Indices) > 0 && len(f.UUIDs) > 0 {
		return errors.New("devices: indices and UUIDs in one list are not allowed: use one of them, or two resources")
	}
	return nil
}

// maxGPUs is above any node and keeps a slip from becoming a list of millions.
const maxGPUs = 64

// cut shortens what somebody wrote, for a message.
func cut(text []byte) string {
	const most = 60
	if len(text) <= most {
		return string(text)
	}
	return strings.ToValidUTF8(string(text[:most]), "") + "…"
}

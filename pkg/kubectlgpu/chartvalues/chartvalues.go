// Package chartvalues reads from values files of the Helm chart how the nodes' driver is set up: the
// settings that decide what a node publishes. It is for commands that look at presets. It must not
// render the chart; a test of the chart holds its reading against what the chart passes on.
package chartvalues

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/config"
)

// Values are those of the chart that matter here. What is not there has the plugin's default.
type Values struct {
	DriverName        *string         `json:"driverName"`
	SliceVocabulary   *string         `json:"sliceVocabulary"`
	MIGDevices        *string         `json:"migDevices"`
	MIGForeignDevices *bool           `json:"migForeignDevices"`
	FeatureGates      map[string]bool `json:"featureGates"`
	GPUs              struct {
		Include []any `json:"include"`
		Exclude []any `json:"exclude"`
	} `json:"gpus"`
	Sharing struct {
		Devices            []any  `json:"devices"`
		DevicePluginConfig string `json:"devicePluginConfig"`
		MPS                struct {
			Enabled bool `json:"enabled"`
		} `json:"mps"`
	} `json:"sharing"`
	MIGLayouts struct {
		ConfigMap string `json:"configMap"`
		Default   string `json:"default"`
	} `json:"migLayouts"`
	KubeletPlugin struct {
		Containers struct {
			GPUs struct {
				Args []string `json:"args"`
			} `json:"gpus"`
		} `json:"containers"`
	} `json:"kubeletPlugin"`
}

// Read reads files of values as helm does: a later one goes before an earlier one, maps are merged,
// lists replaced, and null takes a value back. Values that do not matter here are passed over.
func Read(paths ...string) (Values, error) {
	merged := map[string]any{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return Values{}, fmt.Errorf("--values: %w", err)
		}
		var layer map[string]any
		if err := yaml.Unmarshal(data, &layer); err != nil {
			return Values{}, fmt.Errorf("--values %s: this is no file of values: %w", path, err)
		}
		merge(merged, layer)
	}
	data, err := json.Marshal(merged)
	if err != nil {
		return Values{}, fmt.Errorf("--values: %w", err)
	}
	var v Values
	if err := json.Unmarshal(data, &v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return Values{}, fmt.Errorf("--values: %s is a %s, must be a %s as in the chart's values.yaml", wrong.Field, wrong.Value, wrong.Type)
		}
		return Values{}, fmt.Errorf("--values: %w", err)
	}
	return v, nil
}

func merge(into, from map[string]any) {
	for key, value := range from {
		have, both := into[key].(map[string]any)
		more, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case both && isMap:
			merge(have, more)
		case isMap:
			// What is merged into later must not be the caller's.
			into[key] = maps.Clone(more)
		default:
			into[key] = value
		}
	}
}

// Apply puts the values into settings of the plugin, as the chart does with flags. Declared MIG
// layouts are in a ConfigMap of the cluster: only the name of the nodes' configuration is taken.
func (v Values) Apply(c *config.Config) error {
	set(&c.DriverName, v.DriverName)
	set(&c.SliceVocabulary, v.SliceVocabulary)
	set(&c.MIGDevices, v.MIGDevices)
	set(&c.MIGForeign, v.MIGForeignDevices)
	if lists, ok := v.FeatureGates["DRAListTypeAttributes"]; ok {
		c.ListAttributes = lists
	}
	c.MPS, c.DevicePluginConfig, c.MIGLayout = v.Sharing.MPS.Enabled, v.Sharing.DevicePluginConfig, v.MIGLayouts.Default
	if v.MIGLayouts.ConfigMap == "" {
		c.MIGLayout = ""
	}
	for text, list := range map[*string][]any{&c.IncludeGPUs: v.GPUs.Include, &c.ExcludeGPUs: v.GPUs.Exclude, &c.SharedDevices: v.Sharing.Devices} {
		if len(list) == 0 {
			continue
		}
		data, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("--values: %w", err)
		}
		*text = string(data)
	}
	return v.more(c)
}

// more reads the plugin's flags among those that the values add. Others, such as those of logging,
// do not matter here.
func (v Values) more(c *config.Config) error {
	fs := pflag.NewFlagSet("kubeletPlugin.containers.gpus.args", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	c.AddFlags(fs)
	if err := fs.Parse(slices.Clone(v.KubeletPlugin.Containers.GPUs.Args)); err != nil {
		return fmt.Errorf("--values: kubeletPlugin.containers.gpus.args: %w", err)
	}
	return nil
}

func set[T any](to *T, value *T) {
	if value != nil {
		*to = *value
	}
}

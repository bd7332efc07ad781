package chart

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/chartvalues"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
)

// offered are the settings that decide what a node publishes.
func offered(t *testing.T, c *config.Config) map[string]any {
	t.Helper()
	declared, err := c.Shares()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"driver": c.DriverName, "vocabulary": c.SliceVocabulary, "lists": c.ListAttributes, "partitions": c.MIGDevices, "foreign": c.MIGForeign,
		"layout": c.MIGLayout, "shares": declared, "MPS": c.MPS, "selection": c.Selection(),
	}
}

// What kubectl gpu reads of a file of values is what the chart tells the plugin, for every set of values
// of the chart's own tests.
func TestCommandLineReadsValuesAsTheChartDoes(t *testing.T) {
	more := map[string]string{
		"GPUs":      "gpus:\n  include: [{nodes: [pool-a-*], products: ['*H100*']}]\n  exclude: [{nodes: [pool-a-1], uuids: [GPU-1]}, {nodes: [b], pciAddresses: ['0000:1a:00.0']}]\n",
		"shares":    "migDevices: on-demand\nsharing:\n  devices:\n  - {nodes: [pool-a-*], enforcement: cooperative, devices: {profiles: ['1g*']}}\n  - {nodes: [b], enforcement: none, replicas: 2}\n",
		"lists":     "featureGates: {DRAListTypeAttributes: true}\nsliceVocabulary: minimal\n",
		"lists off": "featureGates: {DRAListTypeAttributes: false, DeviceMetadata: true}\n",
		"layouts":   "migDevices: static\nmigLayouts: {configMap: x, default: small}\n",
		"arguments": "kubeletPlugin: {containers: {gpus: {args: [--slice-vocabulary=minimal, --vmodule=a=1]}}}\n",
	}
	files := map[string]string{}
	for _, path := range valueSets(t) {
		if path != "" {
			files[filepath.Base(path)] = path
		}
	}
	for name, text := range more {
		files[name] = inFile(t, text).Files[0]
	}
	for name, path := range files {
		t.Run(name, func(t *testing.T) {
			values, err := chartvalues.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			got := config.Default()
			if err := values.Apply(got); err != nil {
				t.Fatal(err)
			}
			got.NodeName = "pool-a-1"
			if diff := cmp.Diff(offered(t, configOf(t, path, "pool-a-1")), offered(t, got)); diff != "" {
				t.Errorf("settings (-chart's +command line's):\n%s", diff)
			}
		})
	}
}

// The classes of presets are the chart's.
func TestClassesOfPresets(t *testing.T) {
	want := map[string]string{}
	for name, class := range classes(t, valuesFrom("", "driverName=gpu.example.com"), reference) {
		want[name] = strings.Join(strings.Fields(class.Spec.Selectors[0].CEL.Expression), " ")
	}
	got := map[string]string{}
	for _, class := range preset.Classes("gpu.example.com") {
		got[class.Name] = class.Spec.Selectors[0].CEL.Expression
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-chart's +presets'):\n%s", diff)
	}
}

package chartvalues_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/chartvalues"
)

func files(t testing.TB, texts ...string) []string {
	t.Helper()
	var paths []string
	for i, text := range texts {
		path := filepath.Join(t.TempDir(), string(rune('a'+i))+".yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func applied(t *testing.T, texts ...string) *config.Config {
	t.Helper()
	values, err := chartvalues.Read(files(t, texts...)...)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := values.Apply(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// Each value changes the setting that the chart's flag changes; nothing else.
func TestApply(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want func(*config.Config)
	}{
		"nothing":             {"", func(*config.Config) {}},
		"empty":               {"{}", func(*config.Config) {}},
		"values of others":    {"image: {tag: v1}\nwebhook: {enabled: true}\nkubeletPlugin: {nodeSelector: {a: b}}\n", func(*config.Config) {}},
		"driver name":         {"driverName: gpu.example.com", func(c *config.Config) { c.DriverName = "gpu.example.com" }},
		"vocabulary":          {"sliceVocabulary: minimal", func(c *config.Config) { c.SliceVocabulary = "minimal" }},
		"partitions":          {"migDevices: on-demand", func(c *config.Config) { c.MIGDevices = "on-demand" }},
		"foreign partitions":  {"migForeignDevices: false", func(c *config.Config) { c.MIGForeign = false }},
		"lists":               {"featureGates: {DRAListTypeAttributes: true, DeviceMetadata: false}", func(c *config.Config) { c.ListAttributes = true }},
		"lists off":           {"featureGates: {DRAListTypeAttributes: false}", func(*config.Config) {}},
		"MPS":                 {"sharing: {mps: {enabled: true}}", func(c *config.Config) { c.MPS = true }},
		"included GPUs":       {"gpus: {include: [{products: ['*H100*']}]}", func(c *config.Config) { c.IncludeGPUs = `[{"products":["*H100*"]}]` }},
		"excluded GPUs":       {"gpus: {exclude: [{uuids: [GPU-1]}]}", func(c *config.Config) { c.ExcludeGPUs = `[{"uuids":["GPU-1"]}]` }},
		"no GPUs":             {"gpus: {include: [], exclude: null}", func(*config.Config) {}},
		"shares":              {"sharing: {devices: [{enforcement: none, replicas: 4}]}", func(c *config.Config) { c.SharedDevices = `[{"enforcement":"none","replicas":4}]` }},
		"device plugin":       {"sharing: {devicePluginConfig: 'version: v1'}", func(c *config.Config) { c.DevicePluginConfig = "version: v1" }},
		"layouts":             {"migLayouts: {configMap: layouts, default: small}", func(c *config.Config) { c.MIGLayout = "small" }},
		"layout without file": {"migLayouts: {default: small}", func(*config.Config) {}},
		"arguments": {
			"migDevices: static\nkubeletPlugin: {containers: {gpus: {args: [--mig-devices=on-demand, --list-attributes, --v=4, --vmodule=a=1]}}}",
			func(c *config.Config) { c.MIGDevices, c.ListAttributes = "on-demand", true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := config.Default()
			tc.want(want)
			if diff := cmp.Diff(want, applied(t, tc.text)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// Later files go before earlier ones: maps are merged, lists replaced, null takes a value back.
func TestLayers(t *testing.T) {
	c := applied(t,
		"migDevices: static\ndriverName: gpu.example.com\nsharing: {mps: {enabled: true}, devices: [{enforcement: none, replicas: 2}]}\ngpus: {exclude: [{uuids: [GPU-1]}]}",
		"migDevices: on-demand\ndriverName: null\nsharing: {devices: [{enforcement: none, replicas: 3}]}",
		"gpus: null",
	)
	want := config.Default()
	want.MIGDevices, want.MPS, want.SharedDevices = "on-demand", true, `[{"enforcement":"none","replicas":3}]`
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// What cannot be read names the file, or the value with what it has to be.
func TestWrongValues(t *testing.T) {
	for text, words := range map[string][]string{
		"[1, 2]":                        {"a.yaml", "no file of values"},
		"a: [b":                         {"a.yaml", "no file of values"},
		"migDevices: [on-demand]":       {"migDevices is a array", "must be a string"},
		"migForeignDevices: 'yes'":      {"migForeignDevices is a string", "must be a bool"},
		"gpus: {include: {uuids: [x]}}": {"gpus.include is a object"},
		"sharing: {mps: {enabled: 1}}":  {"sharing.mps.enabled is a number", "must be a bool"},
	} {
		_, err := chartvalues.Read(files(t, text)...)
		if err == nil {
			t.Errorf("%q is taken", text)
			continue
		}
		for _, w := range append(words, "--values") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v; want %q", text, err, w)
			}
		}
	}
	if _, err := chartvalues.Read("/nowhere/values.yaml"); err == nil || !strings.Contains(err.Error(), "--values: open /nowhere/values.yaml") {
		t.Errorf("%v", err)
	}
	v, err := chartvalues.Read(files(t, "kubeletPlugin: {containers: {gpus: {args: [--list-attributes=maybe]}}}")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Apply(config.Default()); err == nil || !strings.Contains(err.Error(), "kubeletPlugin.containers.gpus.args") || !strings.Contains(err.Error(), "list-attributes") {
		t.Errorf("%v", err)
	}
}

// Whatever is in a file: it is read or refused, and reading it twice is reading it once.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"migDevices: static", "gpus: {include: [{products: [a]}]}", "sharing: {devices: [1]}", "- a", "kubeletPlugin: {containers: {gpus: {args: [--x]}}}", "a: null"} {
		f.Add(text)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "values.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		once, err := chartvalues.Read(path)
		if err != nil {
			return
		}
		twice, err := chartvalues.Read(path, path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Errorf("once and twice:\n%s", diff)
		}
	})
}

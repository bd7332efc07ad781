package chart

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestValuesAreRefused(t *testing.T) {
	tests := map[string]struct{ set, want string }{
		"a misspelled value":        {"driverNam=x", "'driverNam' not allowed"},
		"misspelled, deep":          {"kubeletPlugin.containers.gpus.healthCheckPort=1", "'healthCheckPort' not allowed"},
		"a gate that is not there":  {"featureGates.DynamicMIG=true", "'DynamicMIG' not allowed"},
		"a value of the rival":      {"gpuResourcesEnabledOverride=true", "'gpuResourcesEnabledOverride' not allowed"},
		"the wrong type":            {"rbac.events=maybe", "/rbac/events"},
		"outside of a choice":       {"sliceVocabulary=tiny", "'full', 'minimal'"},
		"not a duration":            {"rescanInterval=soon", "/rescanInterval"},
		"a relative path":           {"cdiRoot=cdi", "/cdiRoot"},
		"a path's slash at the end": {"nvidiaDriverRoot=/run/nvidia/", "/nvidiaDriverRoot"},
		"no port":                   {"kubeletPlugin.metrics.gpuHttpEndpoint=", "/kubeletPlugin/metrics/gpuHttpEndpoint"},
		"driver name in capitals":   {"driverName=GPU.nvidia.com", "/driverName"},
		"driver name with a digit":  {"driverName=1gpu.example.com", "/driverName"},
		"plugins path too long":     {"kubeletPlugin.kubeletPluginsDirectoryPath=/" + strings.Repeat("p", 60), "got 61, want 60"},
		"registry path too long":    {"kubeletPlugin.kubeletRegistrarDirectoryPath=/" + strings.Repeat("p", 71), "got 72, want 71"},
		"socket path too long":      {"driverName=" + strings.Repeat("d", 37), "would have a path of 108 bytes"},
		"an account without a name": {"serviceAccount.create=false", "serviceAccount.name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Render(t.Context(), Release{Name: "x", Namespace: "x", Chart: chartDir, Values: valuesFrom("", tt.set)}, reference)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("--set %s: %v; want an error that says %q", tt.set, err, tt.want)
			}
		})
	}
	render(t, valuesFrom("", "driverName="+strings.Repeat("d", 36)), reference)
}

func TestClusterIsRefused(t *testing.T) {
	r := Release{Name: "x", Namespace: "x", Chart: chartDir}
	if _, err := Render(t.Context(), r, "1.33.9"); err == nil || !strings.Contains(err.Error(), "requires kubeVersion") {
		t.Errorf("1.33: %v", err)
	}
	r.Namespace = "default"
	if _, err := Render(t.Context(), r, reference); err == nil || !strings.Contains(err.Error(), "allowDefaultNamespace") {
		t.Errorf("namespace default: %v", err)
	}
	r.Values.Set = []string{"allowDefaultNamespace=true"}
	if _, err := Render(t.Context(), r, reference); err != nil {
		t.Errorf("namespace default, allowed: %v", err)
	}
	if _, err := Render(t.Context(), r, "new"); err == nil {
		t.Error("a version that is none was taken")
	}
}

type schema struct {
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
}

// Every value has a schema and every schema a value: neither may be forgotten.
func TestSchemaAndValuesAreInStep(t *testing.T) {
	var s schema
	if err := json.Unmarshal(readFile(t, chartDir, "values.schema.json"), &s); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := yaml.UnmarshalStrict(readFile(t, chartDir, "values.yaml"), &v); err != nil {
		t.Fatal(err)
	}
	delete(s.Properties, "global")
	compare(t, "", s, v)
}

func compare(t *testing.T, path string, s schema, v map[string]any) {
	t.Helper()
	if s.AdditionalProperties != false {
		t.Errorf("%s: the schema takes any name", path)
	}
	for name, sub := range s.Properties {
		value, ok := v[name]
		if !ok {
			// Gates are off unless named: the one mapping whose names are not in values.yaml.
			if path != ".featureGates" {
				t.Errorf("%s.%s is in the schema, not in values.yaml", path, name)
			}
			continue
		}
		if mapping, ok := value.(map[string]any); ok && len(sub.Properties) > 0 {
			compare(t, path+"."+name, sub, mapping)
		}
	}
	for name := range v {
		if _, ok := s.Properties[name]; !ok {
			t.Errorf("%s.%s is in values.yaml, not in the schema", path, name)
		}
	}
}

func TestReadmeIsInStep(t *testing.T) {
	table, err := ValuesTable(readFile(t, chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	readme := readFile(t, chartDir, "README.md")
	want, err := InsertValues(readme, table)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(readme) {
		t.Error("README.md's table is not the one of values.yaml: run `go run -C test/chart ./cmd/chartctl docs ../../deployments/helm/gpu-dra-driver`")
	}
	if rows := strings.Count(table, "\n"); rows < 40 {
		t.Errorf("a table of %d lines", rows)
	}
}

func TestValuesTable(t *testing.T) {
	got, err := ValuesTable([]byte("# A title.\n\n# -- First | one.\na: 1\nb:\n  # -- Second.\n  c: [x]\n"))
	want := "| Value | Default | Meaning |\n|---|---|---|\n| `a` | `1` | First \\| one. |\n| `b.c` | `[\"x\"]` | Second. |\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	for name, bad := range map[string]string{
		"no comment": "a: 1\n", "another comment": "# One.\na: 1\n", "an empty mapping": "a: {}\n",
		"a list": "[1]", "nothing": "", "not YAML": "a: [",
	} {
		if table, err := ValuesTable([]byte(bad)); err == nil {
			t.Errorf("%s gives a table:\n%s", name, table)
		}
	}
	if _, err := InsertValues([]byte("no marks"), ""); err == nil {
		t.Error("a README without marks was changed")
	}
}

func TestNotesSayWhatIsMissing(t *testing.T) {
	tests := map[string]struct {
		values  Values
		version string
		say     []string
		hide    []string
	}{
		"1.37":       {valuesFrom(""), "1.37.0", []string{"CDI specs from /var/run/cdi", "privileged", "may ask for nvidia.com/gpu", "daemonset gpu-dra-driver-kubelet-plugin", "DRAConsumableCapacity"}, []string{"DRAExtendedResource"}},
		"1.35":       {valuesFrom(""), "1.35.0", []string{"cannot be offered in shares", "DRAExtendedResource"}, nil},
		"no classes": {valuesFrom("", "deviceClasses.create=false"), "1.37.0", []string{"no DeviceClasses"}, []string{"try-a-gpu", "nvidia.com/gpu without"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			notes := render(t, tt.values, tt.version).Notes
			for _, part := range tt.say {
				if !strings.Contains(notes, part) {
					t.Errorf("the notes do not say %q:\n%s", part, notes)
				}
			}
			if slices.ContainsFunc(tt.hide, func(part string) bool { return strings.Contains(notes, part) }) {
				t.Errorf("the notes say one of %q:\n%s", tt.hide, notes)
			}
		})
	}
}

func TestEveryValueSetRenders(t *testing.T) {
	for _, set := range valueSets(t) {
		for _, version := range []string{"1.34.0", "1.35.9", "1.36.0", reference, "1.38.0-beta.0"} {
			objects := decode(t, render(t, valuesFrom(set), version).Manifest)
			if len(objects) == 0 {
				t.Errorf("%s on %s: nothing", filepath.Base(set), version)
			}
		}
	}
}

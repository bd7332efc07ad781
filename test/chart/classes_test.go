package chart

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// matches evaluates a selector as the scheduler of a cluster with the given features does.
func matches(t *testing.T, features cel.Features, expression string, device cel.Device) (bool, error) {
	t.Helper()
	compiled := cel.GetCompiler(features).CompileCELExpression(expression, cel.Options{})
	if compiled.Error != nil {
		return false, fmt.Errorf("compile %s: %w", expression, compiled.Error)
	}
	if compiled.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		return false, fmt.Errorf("%s: may cost %d, the API server allows %d", expression, compiled.MaxCost, resourcev1.CELSelectorExpressionMaxCost)
	}
	ok, _, err := compiled.DeviceMatches(t.Context(), device)
	return ok, err
}

func deviceOf(driver, typ string, shared bool) cel.Device {
	d := cel.Device{Driver: driver, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
	if typ != "" {
		d.Attributes["type"] = resourcev1.DeviceAttribute{StringValue: &typ}
	}
	if shared {
		d.AllowMultipleAllocations = &shared
	}
	return d
}

func classes(t *testing.T, v Values, version string) map[string]*resourcev1.DeviceClass {
	t.Helper()
	byName := map[string]*resourcev1.DeviceClass{}
	for _, class := range every[*resourcev1.DeviceClass](decode(t, render(t, v, version).Manifest)) {
		byName[class.Name] = class
	}
	return byName
}

func TestClassesSelect(t *testing.T) {
	const ours = "gpu.nvidia.com"
	tests := map[string]struct {
		device   cel.Device
		gpu, mig bool
		shared   bool
	}{
		"a GPU":                     {deviceOf(ours, "gpu", false), true, false, false},
		"a partition":               {deviceOf(ours, "mig", false), false, true, false},
		"a shared GPU":              {deviceOf(ours, "gpu", true), false, false, true},
		"a shared partition":        {deviceOf(ours, "mig", true), false, false, true},
		"a later kind":              {deviceOf(ours, "vfio", false), false, false, false},
		"a later kind, shared":      {deviceOf(ours, "vfio", true), false, false, false},
		"no type":                   {deviceOf(ours, "", false), false, false, false},
		"another driver's GPU":      {deviceOf("gpu.example.com", "gpu", false), false, false, false},
		"another driver's share":    {deviceOf("gpu.example.com", "gpu", true), false, false, false},
		"another driver, same name": {deviceOf("gpu.nvidia.com.example", "gpu", false), false, false, false},
	}
	byName := classes(t, valuesFrom(""), reference)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for class, want := range map[string]bool{"gpu.nvidia.com": tt.gpu, "mig.nvidia.com": tt.mig, "shared.gpu.nvidia.com": tt.shared} {
				expression := byName[class].Spec.Selectors[0].CEL.Expression
				got, err := matches(t, cel.Features{EnableConsumableCapacity: true}, expression, tt.device)
				if err != nil || got != want {
					t.Errorf("class %s: %t, %v; want %t", class, got, err, want)
				}
			}
		})
	}
}

// The CEL field for shares is unknown to clusters without them, which would refuse the class.
func TestClassesFitTheCluster(t *testing.T) {
	tests := map[string]struct {
		version, consumable string
		features            cel.Features
	}{
		"1.34":                      {"1.34.3", "auto", cel.Features{}},
		"1.35":                      {"1.35.0", "auto", cel.Features{}},
		"1.36":                      {"1.36.1", "auto", cel.Features{EnableConsumableCapacity: true}},
		"1.37":                      {"1.37.2", "auto", cel.Features{EnableConsumableCapacity: true}},
		"1.37 with list attributes": {"1.37.2", "auto", cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}},
		"a vendor's 1.37":           {"v1.37.2-gke.100", "auto", cel.Features{EnableConsumableCapacity: true}},
		"1.37, switched off":        {"1.37.2", "off", cel.Features{}},
		"1.35, switched on":         {"1.35.0", "on", cel.Features{EnableConsumableCapacity: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			byName := classes(t, valuesFrom("", "deviceClasses.consumableCapacity="+tt.consumable), tt.version)
			expression := byName["gpu.nvidia.com"].Spec.Selectors[0].CEL.Expression
			if ok, err := matches(t, tt.features, expression, deviceOf("gpu.nvidia.com", "gpu", false)); !ok || err != nil {
				t.Errorf("a GPU: %t, %v", ok, err)
			}
			if strings.Contains(expression, "allowMultipleAllocations") != tt.features.EnableConsumableCapacity {
				t.Errorf("selector %s", expression)
			}
			if byName["shared.gpu.nvidia.com"] != nil != tt.features.EnableConsumableCapacity {
				t.Error("the class of shares is not as the cluster needs it")
			}
		})
	}
}

func TestExtendedResource(t *testing.T) {
	byName := classes(t, valuesFrom(""), reference)
	if name := byName["gpu.nvidia.com"].Spec.ExtendedResourceName; name == nil || *name != "nvidia.com/gpu" {
		t.Errorf("extended resource %v", name)
	}
	if byName["mig.nvidia.com"].Spec.ExtendedResourceName != nil {
		t.Error("partitions serve an extended resource")
	}
	if byName["shared.gpu.nvidia.com"].Spec.ExtendedResourceName != nil {
		t.Error("shares serve an extended resource without being told")
	}
	full := classes(t, valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml")), reference)
	if full["gpu.nvidia.com"].Spec.ExtendedResourceName != nil {
		t.Error("an empty extendedResourceName does not switch it off")
	}
	shared := classes(t, valuesFrom(filepath.Join(chartDir, "ci", "shared-values.yaml")), reference)
	if name := shared["shared.gpu.nvidia.com"].Spec.ExtendedResourceName; name == nil || *name != "nvidia.com/gpu" {
		t.Errorf("extended resource of shares %v", name)
	}
	ok, err := matches(t, cel.Features{EnableConsumableCapacity: true}, full["gpu.nvidia.com"].Spec.Selectors[0].CEL.Expression, deviceOf("gpu.example.com", "gpu", false))
	if !ok || err != nil {
		t.Errorf("the class does not follow driverName: %t, %v", ok, err)
	}
}

package config

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gpu-dra/driver/pkg/inventory/selection"
)

func valid() *Config {
	c := Default()
	c.NodeName = "node-0"
	return c
}

func TestDefaultNeedsOnlyTheNodeName(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Errorf("default with a node name: %v", err)
	}
	err := Default().Validate()
	if err == nil || !strings.Contains(err.Error(), "--node-name") {
		t.Errorf("default without a node name: %v, want an error that names --node-name", err)
	}
}

func TestValidateNamesFlagValueAndRemedy(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		want   []string
	}{
		"node name":             {func(c *Config) { c.NodeName = "Node_0" }, []string{"--node-name", `"Node_0"`, "spec.nodeName"}},
		"driver name":           {func(c *Config) { c.DriverName = "GPU" }, []string{"--driver-name", `"GPU"`, "lower case"}},
		"CDI vendor":            {func(c *Config) { c.DriverName = "1gpu.example.com" }, []string{"--driver-name", `"1gpu.example.com"`, "starts with a letter"}},
		"pod UID":               {func(c *Config) { c.PodUID = "../../x" }, []string{"--pod-uid", `"../../x"`, "letters, digits and '-'", "metadata.uid"}},
		"long pod UID":          {func(c *Config) { c.PodUID = strings.Repeat("0", 64) }, []string{"--pod-uid", "63"}},
		"long driver name":      {func(c *Config) { c.DriverName = strings.Repeat("a", 64) }, []string{"--driver-name", "63"}},
		"relative path":         {func(c *Config) { c.CDIDir = "cdi" }, []string{"--cdi-dir", `"cdi"`, "absolute"}},
		"relative mount":        {func(c *Config) { c.DriverRoot.Container = "x" }, []string{"--driver-root-mount", "absolute"}},
		"vocabulary":            {func(c *Config) { c.SliceVocabulary = "some" }, []string{"--slice-vocabulary", `"some"`, "full, minimal"}},
		"MIG devices":           {func(c *Config) { c.MIGDevices = "all" }, []string{"--mig-devices", `"all"`, "none, static, on-demand"}},
		"http address":          {func(c *Config) { c.HTTPAddress = "8080" }, []string{"--http-address", `"8080"`, "host:port"}},
		"health address":        {func(c *Config) { c.HealthAddress = "x" }, []string{"--grpc-health-address", `"x"`}},
		"qps":                   {func(c *Config) { c.APIQPS = 0 }, []string{"--kube-api-qps", "over 0"}},
		"qps not a number":      {func(c *Config) { c.APIQPS = float32(math.NaN()) }, []string{"--kube-api-qps", "NaN", "finite"}},
		"endless qps":           {func(c *Config) { c.APIQPS = float32(math.Inf(1)) }, []string{"--kube-api-qps", "+Inf", "finite"}},
		"burst":                 {func(c *Config) { c.APIBurst = -1 }, []string{"--kube-api-qps", "burst of -1"}},
		"rescan":                {func(c *Config) { c.RescanInterval = time.Millisecond }, []string{"--rescan-interval", "1ms", "1s"}},
		"holder wait":           {func(c *Config) { c.HolderWait = time.Minute }, []string{"--holder-wait", "1m0s", "45s"}},
		"shutdown deadline":     {func(c *Config) { c.ShutdownDeadline = -1 }, []string{"--shutdown-deadline"}},
		"included GPUs":         {func(c *Config) { c.IncludeGPUs = "[{uuids: [x]}]" }, []string{"--include-gpus", "entry 0", "uuids", `"x"`}},
		"excluded GPUs":         {func(c *Config) { c.ExcludeGPUs = "[{}]" }, []string{"--exclude-gpus", "says nothing"}},
		"shared devices":        {func(c *Config) { c.SharedDevices = "[{enforcement: mps}]" }, []string{"--shared-devices", "replicas"}},
		"device plugin":         {func(c *Config) { c.DevicePluginConfig = "version: v2" }, []string{"--device-plugin-config", `"v2"`}},
		"shares without MPS":    {func(c *Config) { c.SharedDevices = "[{enforcement: mps, replicas: 2}]" }, []string{"--mps", "false", "declared as shared by MPS"}},
		"layout without a file": {func(c *Config) { c.MIGLayout = "all-1g" }, []string{"--mig-layout", "all-1g", "--mig-layout-file"}},
		"layouts without MIG":   {func(c *Config) { c.MIGLayoutFile = "/f" }, []string{"--mig-devices", "none", "static or on-demand"}},
		"relative layouts":      {func(c *Config) { c.MIGLayoutFile, c.MIGDevices = "f", MIGStatic }, []string{"--mig-layout-file", "absolute"}},
		"long socket": {func(c *Config) {
			c.PodUID = "01234567-89ab-cdef-0123-456789abcdef"
			c.KubeletPluginsDir = "/" + strings.Repeat("d", 60)
		}, []string{"--kubelet-plugins-dir", "107", "--driver-name"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := valid()
			tc.change(c)
			err := c.Validate()
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
		})
	}
}

// The declarations of the device plugin's file come behind our own, and those of other nodes
// are left out.
func TestSelection(t *testing.T) {
	c := valid()
	c.IncludeGPUs, c.ExcludeGPUs = "[{products: [T4]}, {nodes: [other], products: [A30]}]", "[{nodes: [node-*], uuids: [GPU-1]}]"
	want := selection.Selection{
		Include: []selection.Entry{{Products: []string{"T4"}}}, Exclude: []selection.Entry{{Nodes: []string{"node-*"}, UUIDs: []string{"GPU-1"}}},
	}
	if diff := cmp.Diff(want, c.Selection()); diff != "" || c.Validate() != nil {
		t.Errorf("%v, selection (-want +got):\n%s", c.Validate(), diff)
	}
	if !valid().Selection().Everything() {
		t.Error("the default leaves GPUs out")
	}
}

func TestShares(t *testing.T) {
	c := valid()
	c.SharedDevices = `[{enforcement: none, replicas: 2, nodes: ["` + c.NodeName + `"]}, {enforcement: none, replicas: 3, nodes: [other]}]`
	c.DevicePluginConfig = "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}"
	declared, err := c.Shares()
	if err != nil || len(declared) != 2 || declared[0].Replicas != 2 || declared[1].Replicas != 4 {
		t.Errorf("declared %+v, %v", declared, err)
	}
}

func TestDriverNamesAreCDIVendors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-c0-1.A_-]{0,8}`).Draw(t, "name")
		isDNS, isVendor := len(validation.IsDNS1123Subdomain(name)) == 0, parser.ValidateVendorName(name) == nil
		if validDriverName(name) != (isDNS && isVendor) {
			t.Fatalf("%q: a DNS name: %t, a CDI vendor: %t, taken: %t", name, isDNS, isVendor, validDriverName(name))
		}
	})
}

// What the chart takes for driverName the plugin must take, or it installs what cannot start;
// and the other way round, or a good name cannot be installed.
func TestTheChartTakesTheSameDriverNames(t *testing.T) {
	raw, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			DriverName struct {
				Pattern   string
				MaxLength int
			}
		}
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	chart := schema.Properties.DriverName
	pattern, err := regexp.Compile(chart.Pattern)
	if err != nil {
		t.Fatal(err)
	}
	same := func(name string) (plugin, chartTakes bool) {
		return validDriverName(name), pattern.MatchString(name) && len(name) <= chart.MaxLength
	}
	for _, name := range []string{"", "1gpu.example.com", "gpu.1.com", "a", "a.", "-a", strings.Repeat("a", 63), strings.Repeat("a", 64), "gpu.nvidia.com"} {
		if plugin, chartTakes := same(name); plugin != chartTakes {
			t.Errorf("%q: the plugin takes it: %t, the chart: %t", name, plugin, chartTakes)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-c0-1.A_-]{0,8}`).Draw(t, "name")
		if plugin, chartTakes := same(name); plugin != chartTakes {
			t.Fatalf("%q: the plugin takes it: %t, the chart: %t", name, plugin, chartTakes)
		}
	})
}

func TestValidateReportsAllFaultsInAStableOrder(t *testing.T) {
	c := valid()
	c.CDIDir, c.SysRoot, c.APIQPS = "a", "b", 0
	first := c.Validate().Error()
	for range 20 {
		if again := c.Validate().Error(); again != first {
			t.Fatalf("order changed:\n%s\n%s", first, again)
		}
	}
	if got := len(strings.Split(first, "\n")); got != 3 {
		t.Errorf("%d faults reported, want 3:\n%s", got, first)
	}
}

func TestSocketPathBudget(t *testing.T) {
	c := valid()
	c.PodUID = "01234567-89ab-cdef-0123-456789abcdef"
	c.DriverName = strings.Repeat("a", 35)
	if err := c.Validate(); err != nil {
		t.Errorf("a 35-character name in the default directory: %v", err)
	}
	c.DriverName = strings.Repeat("a", 37)
	if err := c.Validate(); err == nil {
		t.Error("a 37-character name in the default directory passes though its socket path is too long")
	}
}

// Every field must be reachable by a flag, or a user could not set it.
func TestEveryFieldHasAFlagAndEveryFlagAnEnvironmentVariable(t *testing.T) {
	c := Default()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	samples := map[string]string{"string": "/x", "float32": "7", "int": "7", "bool": "true", "duration": "7s", "policies": "device-plugin=warn,dra-plugin=warn,mig-manager=warn"}
	env := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		value := samples[f.Value.Type()]
		if f.Value.Type() == "bool" && f.DefValue == "true" {
			value = "false"
		}
		env[EnvName(f.Name)] = value
		if f.Usage == "" {
			t.Errorf("--%s has no help", f.Name)
		}
	})
	if err := ApplyEnv(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	unchanged := leavesEqual(reflect.ValueOf(*c), reflect.ValueOf(*Default()), "")
	if len(unchanged) > 0 {
		t.Errorf("no flag sets %v", unchanged)
	}
}

func leavesEqual(a, b reflect.Value, path string) []string {
	var equal []string
	for i := range a.NumField() {
		name := path + a.Type().Field(i).Name
		if a.Field(i).Kind() == reflect.Struct {
			equal = append(equal, leavesEqual(a.Field(i), b.Field(i), name+".")...)
		} else if a.Field(i).Equal(b.Field(i)) {
			equal = append(equal, name)
		}
	}
	return equal
}

func TestAFlagWinsOverItsVariable(t *testing.T) {
	c := Default()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse([]string{"--node-name=flag"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"NODE_NAME": "env", "CDI_DIR": "/cdi", "POD_UID": ""}
	if err := ApplyEnv(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"flag", "/cdi", ""}, []string{c.NodeName, c.CDIDir, c.PodUID}); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestABadVariableIsNamed(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	Default().AddFlags(fs)
	err := ApplyEnv(fs, func(name string) (string, bool) { return "soon", name == "RESCAN_INTERVAL" })
	if err == nil || !strings.Contains(err.Error(), "RESCAN_INTERVAL") {
		t.Errorf("error %v does not name RESCAN_INTERVAL", err)
	}
}

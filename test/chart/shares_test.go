package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
)

const someShares = "sharing: {devices: [{enforcement: none, replicas: 2}]}\n"

// Clusters in which shared devices would be something else are refused.
func TestSharesNeedACluster(t *testing.T) {
	for name, tt := range map[string]struct {
		version, text, want string
	}{
		"1.35":                         {"1.35.2", someShares, "DRAConsumableCapacity"},
		"1.35, switched on":            {"1.35.2", someShares + "deviceClasses: {consumableCapacity: 'on'}", ""},
		"1.36":                         {"1.36.0", someShares, ""},
		"1.36 with partitions":         {"1.36.0", someShares + "migDevices: on-demand", "1.37"},
		"1.37 with partitions":         {"1.37.0", someShares + "migDevices: on-demand", ""},
		"1.35, the plugin's file":      {"1.35.2", "sharing: {devicePluginConfig: 'version: v1'}", "sharing.devicePluginConfig"},
		"1.34, nothing shared":         {"1.34.1", "", ""},
		"1.36, partitions, not shared": {"1.36.0", "migDevices: on-demand", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Render(t.Context(), Release{Name: "x", Namespace: "x", Chart: chartDir, Values: inFile(t, tt.text)}, tt.version)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error that says %q", err, tt.want)
			}
		})
	}
}

// configOf reads what the plugin of a node is told, with a file of values.
func configOf(t *testing.T, values, node string) *config.Config {
	t.Helper()
	var args []string
	for _, set := range every[*appsv1.DaemonSet](decode(t, render(t, valuesFrom(values), reference).Manifest)) {
		for _, c := range set.Spec.Template.Spec.Containers {
			if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--driver-root=") }) {
				args = c.Args
			}
		}
	}
	c := config.Default()
	flags := pflag.NewFlagSet("plugin", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	c.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	c.NodeName = node
	return c
}

// The lists of GPUs reach the plugin as they are, those of other nodes too.
func TestSelectionReachesThePlugin(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	text := "gpus:\n  include: [{products: ['*H100*']}]\n  exclude:\n  - {nodes: [pool-a-*], pciAddresses: ['0000:1a:00.0']}\n  - {nodes: [b], uuids: [GPU-1]}\n"
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := selection.Selection{
		Include: []selection.Entry{{Products: []string{"*H100*"}}},
		Exclude: []selection.Entry{{Nodes: []string{"pool-a-*"}, PCIAddresses: []string{"0000:1a:00.0"}}},
	}
	c := configOf(t, values, "pool-a-1")
	if diff := cmp.Diff(want, c.Selection()); diff != "" || c.Validate() != nil {
		t.Errorf("%v, selection (-want +got):\n%s", c.Validate(), diff)
	}
	if err := os.WriteFile(values, []byte("gpus: {include: [], exclude: null}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !configOf(t, values, "pool-a-1").Selection().Everything() {
		t.Error("empty lists leave GPUs out")
	}
}

// What the chart passes on is what the plugin reads.
func TestSharesReachThePlugin(t *testing.T) {
	c := configOf(t, filepath.Join(chartDir, "ci", "shared-values.yaml"), "pool-a-1")
	declared, err := c.Shares()
	if err != nil || len(declared) != 3 {
		t.Fatalf("declared %+v, %v", declared, err)
	}
	if d := declared[0]; d.Enforcement != "mps" || d.Replicas != 4 || *d.ThreadPercentage != 30 || d.Devices.Products[0] != "*H100*" {
		t.Errorf("the first is %+v", d)
	}
	if d := declared[2]; d.Enforcement != "none" || d.Replicas != 4 {
		t.Errorf("that of the device plugin is %+v", d)
	}
}

// A container may ask for one share, whatever form its pod has.
func TestOneShareAContainer(t *testing.T) {
	set := decode(t, render(t, valuesFrom(filepath.Join(chartDir, "ci", "shared-values.yaml")), reference).Manifest)
	policy := named(t, every[*admissionv1.ValidatingAdmissionPolicy](set), "-one-share")
	v := compile(t, policy)
	asks := func(amounts ...string) []corev1.Container {
		var out []corev1.Container
		for _, amount := range amounts {
			c := corev1.Container{Name: "c"}
			if amount != "" {
				c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(amount)}
			}
			out = append(out, c)
		}
		return out
	}
	for name, tt := range map[string]struct {
		spec   corev1.PodSpec
		denied bool
	}{
		"none":             {corev1.PodSpec{Containers: asks("")}, false},
		"one":              {corev1.PodSpec{Containers: asks("1")}, false},
		"one each":         {corev1.PodSpec{Containers: asks("1", "1"), InitContainers: asks("1")}, false},
		"two":              {corev1.PodSpec{Containers: asks("2")}, true},
		"two in one":       {corev1.PodSpec{Containers: asks("1", "2")}, true},
		"two at the start": {corev1.PodSpec{Containers: asks("1"), InitContainers: asks("2")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			gvk, gvr := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
			attributes := admission.NewAttributesRecord(&corev1.Pod{Spec: tt.spec}, nil, gvk, "ns", "pod", gvr, "", admission.Create, nil, false, plugin("x:y", ""))
			versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
			if err != nil {
				t.Fatal(err)
			}
			result := v.Validate(t.Context(), gvr, versioned, nil, nil, celconfig.RuntimeCELCostBudget, nil)
			denied := false
			for _, decision := range result.Decisions {
				if decision.Evaluation == validating.EvalError {
					t.Fatalf("evaluating: %s", decision.Message)
				}
				denied = denied || decision.Action == validating.ActionDeny
			}
			if denied != tt.denied {
				t.Errorf("denied: %t", denied)
			}
		})
	}
}

// Only a node whose GPU driver is to limit containers shows the plugin the host's cgroups, and by
// the host's path.
func TestCgroupsForLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"none":                {"", false},
		"another enforcement": {someShares, false},
		"by the driver":       {"sharing: {devices: [{enforcement: none, replicas: 2}, {enforcement: driver}]}\n", true},
		"of another machine":  {"sysRoot: /sim/sys\nsharing: {devices: [{enforcement: driver}]}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			rendered, err := Render(t.Context(), Release{Name: "x", Namespace: "x", Chart: chartDir, Values: inFile(t, tt.text)}, reference)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, set := range every[*appsv1.DaemonSet](decode(t, rendered.Manifest)) {
				spec := set.Spec.Template.Spec
				for _, m := range spec.Containers[0].VolumeMounts {
					mounted := m.MountPath == "/sys/fs/cgroup" && m.ReadOnly
					found = found || mounted && slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
						return v.Name == m.Name && v.HostPath != nil && v.HostPath.Path == "/sys/fs/cgroup"
					})
				}
			}
			if found != tt.want {
				t.Errorf("the host's cgroups are there: %t, want %t", found, tt.want)
			}
		})
	}
}

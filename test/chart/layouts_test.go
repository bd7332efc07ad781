package chart

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
)

// withLayouts are the values of a cluster with declared layouts.
func withLayouts() Values {
	return valuesFrom("", "migDevices=on-demand", "migLayouts.configMap=mig", "migLayouts.default=all-1g.10gb")
}

// The file of the ConfigMap is where the plugin looks for it; a node comes up without it.
func TestLayoutsReachThePlugin(t *testing.T) {
	daemonSet, container := pluginOf(t, withLayouts())
	s := settings(t, container)
	if err := s.Validate(); err != nil || s.MIGLayout != "all-1g.10gb" || !s.MIGForeign {
		t.Errorf("settings %+v: %v", s, err)
	}
	volumes := daemonSet.Spec.Template.Spec.Volumes
	i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == "mig" })
	if i < 0 || volumes[i].ConfigMap.Optional == nil || !*volumes[i].ConfigMap.Optional {
		t.Fatalf("volumes %+v", volumes)
	}
	mounted := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumes[i].Name })
	if mounted < 0 || s.MIGLayoutFile != container.VolumeMounts[mounted].MountPath+"/config.yaml" {
		t.Errorf("the plugin reads %s, mounts %+v", s.MIGLayoutFile, container.VolumeMounts)
	}
	if _, container := pluginOf(t, valuesFrom("")); settings(t, container).MIGLayoutFile != "" {
		t.Error("layouts are on without a ConfigMap")
	}
}

// A command that somebody runs in the plugin's container finds by its environment alone what the
// plugin finds by its arguments.
func TestCommandsFindWhatThePluginFinds(t *testing.T) {
	values := valuesFrom("", "migDevices=on-demand", "migLayouts.configMap=mig", "driverName=gpu.example.com", "procRoot=/sim/proc", "sysRoot=/sim/sys",
		"kubeletPlugin.kubeletPluginsDirectoryPath=/k/plugins", "gpus.exclude[0].uuids[0]=GPU-1")
	_, container := pluginOf(t, values)
	want := settings(t, container)
	container.Args = nil
	got := settings(t, container)
	for name, pair := range map[string][2]string{
		"driver name": {want.DriverName, got.DriverName}, "proc": {want.ProcRoot, got.ProcRoot}, "sys": {want.SysRoot, got.SysRoot},
		"plugins": {want.DataDir(), got.DataDir()}, "layouts": {want.MIGLayoutFile, got.MIGLayoutFile},
		"driver": {want.DriverRoot.Container, got.DriverRoot.Container}, "excluded": {want.ExcludeGPUs, got.ExcludeGPUs},
	} {
		if pair[0] != pair[1] || pair[0] == "" {
			t.Errorf("%s: the plugin has %q, a command %q", name, pair[0], pair[1])
		}
	}
}

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
	}
}

// A plugin writes one label of its own node and nothing else of any.
func TestPolicyKeepsPluginsToOneLabel(t *testing.T) {
	const state = "nvidia.com/mig.config.state"
	me := plugin("gpu-dra-driver:gpu-dra-driver-kubelet-plugin", "node-a")
	before := node("node-a", map[string]string{"zone": "1"})
	unschedulable := node("node-a", map[string]string{"zone": "1"})
	unschedulable.Spec.Unschedulable = true
	noted := func(n *corev1.Node, key, value string) *corev1.Node {
		n = n.DeepCopy()
		n.Annotations = map[string]string{key: value}
		return n
	}
	finalized := before.DeepCopy()
	finalized.Finalizers = []string{"example.com/stay"}
	owned := before.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-b", UID: "b"}}
	tests := map[string]struct {
		by            user.Info
		before, after *corev1.Node
		want          string
	}{
		"the state":            {me, before, node("node-a", map[string]string{"zone": "1", state: "success"}), ""},
		"the state goes":       {me, node("node-a", map[string]string{state: "success"}), node("node-a", nil), ""},
		"another label":        {me, before, node("node-a", map[string]string{"zone": "2"}), "only write the label " + state},
		"a new label":          {me, before, node("node-a", map[string]string{"zone": "1", "a": "b"}), "only write the label"},
		"a label goes":         {me, before, node("node-a", nil), "only write the label"},
		"the spec":             {me, before, unschedulable, "only write the label"},
		"whose state it is":    {me, before, noted(before, "gpu.nvidia.com/mig.config.state", "success"), ""},
		"another annotation":   {me, before, noted(before, "a", "b"), "annotations a plugin may only write gpu.nvidia.com/"},
		"an annotation goes":   {me, noted(before, "a", "b"), before, "annotations a plugin may only write"},
		"a finalizer":          {me, before, finalized, "nothing of its finalizers"},
		"an owner":             {me, before, owned, "nothing of its finalizers and owners"},
		"another node":         {me, node("node-b", nil), node("node-b", map[string]string{state: "success"}), "on node 'node-a' may not write node 'node-b'"},
		"without a node":       {plugin("gpu-dra-driver:gpu-dra-driver-kubelet-plugin", ""), before, before, "may not write"},
		"the kubelet":          {&user.DefaultInfo{Name: "system:node:node-a"}, before, unschedulable, ""},
		"an account of others": {plugin("other:gpu-dra-driver-kubelet-plugin", "node-a"), before, unschedulable, ""},
	}
	var policy validating.Validator
	for _, p := range every[*admissionv1.ValidatingAdmissionPolicy](decode(t, render(t, withLayouts(), reference).Manifest)) {
		if strings.HasSuffix(p.Name, "-own-node") {
			policy = compile(t, p)
		}
	}
	gvk, gvr := corev1.SchemeGroupVersion.WithKind("Node"), corev1.SchemeGroupVersion.WithResource("nodes")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			attributes := admission.NewAttributesRecord(tt.after, tt.before, gvk, "", tt.after.Name, gvr, "", admission.Update, nil, false, tt.by)
			versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
			if err != nil {
				t.Fatal(err)
			}
			var message string
			for _, decision := range policy.Validate(t.Context(), gvr, versioned, nil, nil, celconfig.RuntimeCELCostBudget, nil).Decisions {
				if decision.Evaluation == validating.EvalError {
					t.Fatalf("evaluating: %s", decision.Message)
				}
				if decision.Action == validating.ActionDeny && message == "" {
					message = decision.Message
				}
			}
			if (tt.want == "") != (message == "") || !strings.Contains(message, tt.want) {
				t.Errorf("denied with %q, want %q", message, tt.want)
			}
		})
	}
}

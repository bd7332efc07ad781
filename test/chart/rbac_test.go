package chart

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// granted is every permission that the chart may give, with its reason. A rule that is not in
// here fails the test: add it with a reason, or leave it out.
type granted struct {
	reason string
	rule   rbacv1.PolicyRule
}

func base() []granted {
	return []granted{
		{"prepare reads what a claim was given", rbacv1.PolicyRule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"get"}}},
		{"the node's devices are published", rbacv1.PolicyRule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"}}},
		{"slices are owned by the node", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
	}
}

func events() granted {
	return granted{"failures are told on claims and nodes", rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}}
}

func layouts() granted {
	return granted{"declared MIG layouts are chosen and their state is told by labels of the node", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch", "patch"}}}
}

func claimStatus(driver string) []granted {
	return []granted{
		{"the state of devices is in their claims", rbacv1.PolicyRule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims/status"}, Verbs: []string{"patch", "update"}}},
		{"for this driver and the own node alone", rbacv1.PolicyRule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims/driver"}, ResourceNames: []string{driver}, Verbs: []string{"associated-node:patch", "associated-node:update"}}},
	}
}

func TestPermissions(t *testing.T) {
	tests := map[string]struct {
		values Values
		want   []granted
	}{
		"default":   {valuesFrom(""), append(base(), events())},
		"simulated": {valuesFrom(filepath.Join(chartDir, "ci", "simulated-values.yaml")), append(base(), events())},
		"full":      {valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml")), append(append(base(), layouts(), events()), claimStatus("gpu.example.com")...)},
		"layouts":   {valuesFrom("", "migDevices=static", "migLayouts.configMap=mig"), append(base(), layouts(), events())},
		"no events": {valuesFrom("", "rbac.events=false"), base()},
		"status":    {valuesFrom("", "rbac.events=false", "rbac.claimStatus=true"), append(base(), claimStatus("gpu.nvidia.com")...)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := decode(t, render(t, tt.values, reference).Manifest)
			var want []rbacv1.PolicyRule
			for _, g := range tt.want {
				want = append(want, g.rule)
			}
			role := one[*rbacv1.ClusterRole](t, objects)
			if diff := cmp.Diff(want, role.Rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			plugin := component(t, tt.values, "kubelet-plugin")
			binding := one[*rbacv1.ClusterRoleBinding](t, objects)
			subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: plugin.Spec.Template.Spec.ServiceAccountName, Namespace: plugin.Namespace}}
			if diff := cmp.Diff(subject, binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
				t.Errorf("role %q is bound to %+v", binding.RoleRef.Name, binding.Subjects)
			}
			for _, account := range every[*corev1.ServiceAccount](objects) {
				if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
					t.Errorf("any pod with account %s gets its token", account.Name)
				}
			}
		})
	}
}

// What belongs to others is left out when they say so, and nothing else grants anything.
func TestNothingIsGrantedBesides(t *testing.T) {
	bare := decode(t, render(t, valuesFrom(filepath.Join(chartDir, "ci", "bare-values.yaml")), reference).Manifest)
	if len(bare) != 1 {
		t.Errorf("%d objects besides the DaemonSet", len(bare)-1)
	}
	for _, set := range valueSets(t) {
		objects := decode(t, render(t, valuesFrom(set), reference).Manifest)
		for _, object := range objects {
			switch object.(type) {
			case *rbacv1.Role, *rbacv1.RoleBinding, *corev1.Secret:
				t.Errorf("%s: a %T is made", set, object)
			}
		}
		if len(every[*rbacv1.ClusterRole](objects)) > 1 || len(every[*rbacv1.ClusterRoleBinding](objects)) > 1 {
			t.Errorf("%s: more than one role", set)
		}
	}
}

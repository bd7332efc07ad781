package chart

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// part is one of the driver's programs: the pod that the chart makes of it.
type part struct {
	name   string
	labels map[string]string
	spec   corev1.PodSpec
}

// parts are the pods of a release, also of its hooks.
func parts(t *testing.T, objects []runtime.Object) []part {
	t.Helper()
	var all []part
	add := func(template corev1.PodTemplateSpec) {
		all = append(all, part{template.Labels["app.kubernetes.io/component"], template.Labels, template.Spec})
	}
	for _, object := range objects {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			add(o.Spec.Template)
		case *appsv1.Deployment:
			add(o.Spec.Template)
		case *batchv1.Job:
			add(o.Spec.Template)
		}
	}
	return all
}

// everything renders a release with its hooks.
func everything(t *testing.T, v Values) []runtime.Object {
	t.Helper()
	rendered := render(t, v, reference)
	return append(decode(t, rendered.Manifest), decode(t, rendered.Hooks)...)
}

// privileges are what a release grants to its parts, as rows of the page of permissions begin. A path of
// the host is in it as it is.
func privileges(t *testing.T, objects []runtime.Object) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	note := func(who, format string, args ...any) {
		found[fmt.Sprintf("| %s | `%s` |", who, fmt.Sprintf(format, args...))] = true
	}
	for _, p := range parts(t, objects) {
		if p.spec.HostPID {
			note(p.name, "hostPID")
		}
		if p.spec.HostNetwork {
			note(p.name, "hostNetwork")
		}
		if p.spec.HostIPC {
			note(p.name, "hostIPC")
		}
		if p.spec.AutomountServiceAccountToken == nil || *p.spec.AutomountServiceAccountToken {
			note(p.name, "token")
		}
		for _, c := range append(p.spec.Containers, p.spec.InitContainers...) {
			if s := c.SecurityContext; s != nil && s.Privileged != nil && *s.Privileged {
				note(p.name, "privileged")
			}
			if s := c.SecurityContext; s != nil && s.Capabilities != nil {
				for _, capability := range s.Capabilities.Add {
					note(p.name, "capability %s", capability)
				}
			}
			for _, m := range c.VolumeMounts {
				if text := mounted(p.spec, m); text != "" {
					note(p.name, "%s", text)
				}
			}
		}
	}
	for _, role := range every[*rbacv1.ClusterRole](objects) {
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				who := regexp.MustCompile(`(kubelet-plugin|uninstall-check)$`).FindString(role.Name)
				note(who, "%s %s", strings.Join(r.Verbs, ", "), strings.TrimSuffix(resource+"."+r.APIGroups[0], "."))
			}
		}
	}
	for _, binding := range every[*rbacv1.RoleBinding](objects) {
		for _, subject := range binding.Subjects {
			who := regexp.MustCompile(`(kubelet-plugin|mps-daemon|webhook|uninstall-check)$`).FindString(subject.Name)
			note(who, "role %s", binding.RoleRef.Name)
		}
	}
	return found
}

// mounted says what of the host a mount shows; "" for what is not the host's.
func mounted(spec corev1.PodSpec, m corev1.VolumeMount) string {
	i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	if i < 0 || spec.Volumes[i].HostPath == nil {
		return ""
	}
	access := "read and write"
	if m.ReadOnly {
		access = "read"
	}
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
		access += ", mounts seen by the host"
	}
	return fmt.Sprintf("%s: %s", spec.Volumes[i].HostPath.Path, access)
}

// permission is a row of the page: what, with which values, and why.
type permission struct{ what, when, why string }

func permissions(t *testing.T) []permission {
	t.Helper()
	page := string(readFile(t, "..", "..", "docs", "reference", "permissions.md"))
	var rows []permission
	for _, m := range regexp.MustCompile("(?m)^(\\| [a-z-]+ \\| `[^|]+` \\|)([^|]*)\\|([^|]+)\\|$").FindAllStringSubmatch(page, -1) {
		rows = append(rows, permission{m[1], strings.Trim(m[2], "` "), strings.TrimSpace(m[3])})
	}
	if len(rows) < 15 {
		t.Fatalf("found only %d rows in the page of permissions", len(rows))
	}
	return rows
}

// The page of permissions names everything that the chart grants, with the values that make it grant
// that, and nothing that it does not grant: what is for a feature is there with the feature only.
func TestPermissionsAreListed(t *testing.T) {
	listed := map[string]map[string]bool{"": {}}
	for _, row := range permissions(t) {
		if listed[row.when] == nil {
			listed[row.when] = map[string]bool{}
		}
		listed[row.when][row.what] = true
	}
	always := privileges(t, everything(t, valuesFrom("")))
	if diff := cmp.Diff(listed[""], always); diff != "" {
		t.Errorf("without any value (-page +chart):\n%s", diff)
	}
	for when, rows := range listed {
		if when == "" {
			continue
		}
		granted := privileges(t, everything(t, valuesFrom("", strings.Fields(when)...)))
		maps.DeleteFunc(granted, func(what string, _ bool) bool { return always[what] })
		if diff := cmp.Diff(rows, granted); diff != "" {
			t.Errorf("with %s (-page +chart):\n%s", when, diff)
		}
	}
}

// On OpenShift each account may use the constraints that its pod needs, and each pod has an account
// that may.
func TestOpenShift(t *testing.T) {
	objects := everything(t, valuesFrom("", "openshift.enabled=true", "webhook.enabled=true", "sharing.mps.enabled=true"))
	may := map[string]string{}
	for _, binding := range every[*rbacv1.RoleBinding](objects) {
		for _, subject := range binding.Subjects {
			if subject.Namespace != "gpu-dra-driver" || binding.Namespace != subject.Namespace {
				t.Errorf("%s binds %+v", binding.Name, subject)
			}
			may[subject.Name] = strings.TrimPrefix(binding.RoleRef.Name, "system:openshift:scc:")
		}
	}
	for _, p := range parts(t, objects) {
		want := "nonroot-v2"
		if s := p.spec.Containers[0].SecurityContext; s.Privileged != nil && *s.Privileged {
			want = "privileged"
		}
		if have := may[p.spec.ServiceAccountName]; have != want {
			t.Errorf("%s may use the constraints %q, want %q", p.name, have, want)
		}
		delete(may, p.spec.ServiceAccountName)
	}
	if len(may) > 0 {
		t.Errorf("accounts without a pod: %v", may)
	}
}

// No set of values grants what the page does not know, whatever the host's paths are.
func TestNothingUnlistedIsGranted(t *testing.T) {
	path := regexp.MustCompile("`/[^:]*: ")
	withoutPath := func(what string) string { return path.ReplaceAllString(what, "`PATH: ") }
	known := map[string]bool{}
	for _, row := range permissions(t) {
		known[withoutPath(row.what)] = true
	}
	for _, set := range valueSets(t) {
		if filepath.Base(set) == "simulated-values.yaml" {
			// The state of a simulated machine is mounted besides.
			continue
		}
		for what := range privileges(t, everything(t, valuesFrom(set))) {
			if !known[withoutPath(what)] {
				t.Errorf("%s grants what docs/reference/permissions.md does not name: %s", set, what)
			}
		}
	}
}

// Whoever is not privileged is nobody, has no capabilities, cannot get any, and is held by the
// runtime's seccomp profile. No image can be written to.
func TestTheUnprivilegedAreConfined(t *testing.T) {
	seen := map[string]bool{}
	for _, set := range valueSets(t) {
		for _, p := range parts(t, everything(t, valuesFrom(set))) {
			seen[p.name] = true
			for _, c := range p.spec.Containers {
				s := c.SecurityContext
				if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: the image of %s can be written to", set, p.name)
					continue
				}
				if s.Privileged != nil && *s.Privileged {
					continue
				}
				pod := p.spec.SecurityContext
				confined := pod != nil && pod.RunAsNonRoot != nil && *pod.RunAsNonRoot && pod.SeccompProfile != nil &&
					pod.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault &&
					s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation &&
					s.Capabilities != nil && slices.Contains(s.Capabilities.Drop, "ALL") && len(s.Capabilities.Add) == 0
				if !confined {
					t.Errorf("%s: %s is not confined: %+v, %+v", set, p.name, pod, s)
				}
			}
		}
	}
	if want := map[string]bool{"kubelet-plugin": true, "mps-daemon": true, "webhook": true, "uninstall-check": true}; !maps.Equal(seen, want) {
		t.Errorf("seen are %v", seen)
	}
}

// With the value every pod has a policy of its own, which lets in the ports that it has and out what
// asks the API server.
func TestNetworkPolicies(t *testing.T) {
	objects := everything(t, valuesFrom("", "networkPolicy.enabled=true", "networkPolicy.apiServerPorts={6443}", "webhook.enabled=true",
		"webhook.networkPolicy.enabled=true", "sharing.mps.enabled=true"))
	policies := every[*networkingv1.NetworkPolicy](objects)
	for _, p := range parts(t, objects) {
		var ingress, egress []string
		found := 0
		for _, policy := range policies {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(p.labels)) {
				continue
			}
			found++
			if len(policy.Spec.PolicyTypes) != 2 {
				t.Errorf("%s leaves a direction open", policy.Name)
			}
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					ingress = append(ingress, port.Port.String())
				}
			}
			for _, rule := range policy.Spec.Egress {
				for _, port := range rule.Ports {
					egress = append(egress, port.Port.String())
				}
			}
		}
		var ports []string
		for _, port := range p.spec.Containers[0].Ports {
			ports = append(ports, port.Name)
		}
		var out []string
		if *p.spec.AutomountServiceAccountToken {
			out = []string{"6443"}
		}
		if diff := cmp.Diff(ports, ingress) + cmp.Diff(out, egress); found != 1 || diff != "" {
			t.Errorf("%s has %d policies, ports in and out (-want +got):\n%s", p.name, found, diff)
		}
	}
	if n := len(every[*networkingv1.NetworkPolicy](everything(t, valuesFrom("")))); n > 0 {
		t.Errorf("%d policies by default", n)
	}
}

package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func hooksOf(t *testing.T, v Values) []runtime.Object {
	t.Helper()
	return decode(t, render(t, v, reference).Hooks)
}

// The check before an uninstall may list claims, and nothing else; and what it needs is no part
// of a running release.
func TestUninstallCheckPermissions(t *testing.T) {
	objects := hooksOf(t, valuesFrom(""))
	role, binding, account := one[*rbacv1.ClusterRole](t, objects), one[*rbacv1.ClusterRoleBinding](t, objects), one[*corev1.ServiceAccount](t, objects)
	// Which claims are in use on any node.
	want := []rbacv1.PolicyRule{{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"list"}}}
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
	if diff := cmp.Diff(subject, binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
		t.Errorf("role %q is bound to %+v", binding.RoleRef.Name, binding.Subjects)
	}
	if *account.AutomountServiceAccountToken {
		t.Error("any pod with the account gets its token")
	}
	pod := one[*batchv1.Job](t, objects).Spec.Template.Spec
	if pod.ServiceAccountName != account.Name || !*pod.AutomountServiceAccountToken {
		t.Errorf("the check runs as %q", pod.ServiceAccountName)
	}
	container := pod.Containers[0].SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || *container.AllowPrivilegeEscalation || container.Privileged != nil || pod.HostPID || pod.HostNetwork || len(pod.Volumes) > 0 {
		t.Errorf("more than it needs: %+v", pod)
	}
	for _, object := range objects {
		meta := object.(metav1.Object)
		if meta.GetAnnotations()["helm.sh/hook"] != "pre-delete" {
			t.Errorf("%T %s is made at another moment", object, meta.GetName())
		}
		_, isJob := object.(*batchv1.Job)
		policy := meta.GetAnnotations()["helm.sh/hook-delete-policy"]
		if !strings.Contains(policy, "before-hook-creation,hook-succeeded") || strings.Contains(policy, "hook-failed") == isJob {
			t.Errorf("%T %s is removed %q", object, meta.GetName(), policy)
		}
	}
	// Who makes the permissions of the driver themselves makes these too.
	own := hooksOf(t, valuesFrom("", "rbac.create=false"))
	if len(every[*rbacv1.ClusterRole](own))+len(every[*rbacv1.ClusterRoleBinding](own)) != 0 {
		t.Error("permissions are made that are somebody else's")
	}
}

// Whatever is missing, the uninstall ends before helm gives up.
func TestUninstallCheckEnds(t *testing.T) {
	for _, set := range valueSets(t) {
		for _, job := range every[*batchv1.Job](hooksOf(t, valuesFrom(set))) {
			if limit := job.Spec.ActiveDeadlineSeconds; limit == nil || *limit >= 300 || *job.Spec.BackoffLimit != 0 || job.Spec.TTLSecondsAfterFinished == nil {
				t.Errorf("%s: %+v", set, job.Spec)
			}
			if job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
				t.Errorf("%s: the check is repeated", set)
			}
		}
	}
	for _, seconds := range []string{"9", "241"} {
		if err := refusal(t, valuesFrom("", "uninstallCheck.deadlineSeconds="+seconds)); !strings.Contains(err, "/uninstallCheck/deadlineSeconds") {
			t.Errorf("%s: %q", seconds, err)
		}
	}
}

func TestUninstallCheckFollowsValues(t *testing.T) {
	for mode, warnOnly := range map[string]string{"refuse": "--warn-only=false", "warn": "--warn-only=true"} {
		pod := one[*batchv1.Job](t, hooksOf(t, valuesFrom("", "uninstallCheck.mode="+mode, "driverName=gpu.example.com"))).Spec.Template
		container := pod.Spec.Containers[0]
		if !slices.Contains(container.Args, warnOnly) || !slices.Contains(container.Args, "--driver-name=gpu.example.com") {
			t.Errorf("%s: %q", mode, container.Args)
		}
		plugin, _ := pluginOf(t, valuesFrom(""))
		if selected := cmp.Equal(plugin.Spec.Selector.MatchLabels, pod.Labels); selected {
			t.Error("the plugin's DaemonSet would own the check's pod")
		}
	}
	if objects := hooksOf(t, valuesFrom("", "uninstallCheck.mode=none")); len(objects) != 0 {
		t.Errorf("%d hooks, though nothing is to be checked", len(objects))
	}
	full := one[*batchv1.Job](t, hooksOf(t, valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml")))).Spec.Template.Spec
	if full.NodeSelector["example.com/pool"] != "system" || full.NodeSelector["kubernetes.io/os"] != "linux" || len(full.Tolerations) != 1 || full.Containers[0].Image == "" {
		t.Errorf("%+v", full)
	}
	if notes := render(t, valuesFrom(""), reference).Notes; !strings.Contains(notes, "kubectl logs job/gpu-dra-driver-uninstall-check") || !strings.Contains(notes, "--no-hooks") {
		t.Errorf("the notes do not tell of it: %s", notes)
	}
}

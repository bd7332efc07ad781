package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const mpsOn = "sharing.mps.enabled=true"

func mpsOf(t *testing.T, v Values) (*appsv1.DaemonSet, *corev1.Container) {
	t.Helper()
	daemonSet := component(t, v, "mps-daemon")
	return daemonSet, &daemonSet.Spec.Template.Spec.Containers[0]
}

// Nothing privileged is installed that nobody asked for.
func TestMPSIsOffByDefault(t *testing.T) {
	rendered := render(t, valuesFrom(""), reference)
	if strings.Contains(rendered.Manifest, "mps-daemon") {
		t.Error("control daemons are installed")
	}
	if _, plugin := pluginOf(t, valuesFrom("")); settings(t, plugin).MPS {
		t.Error("the plugin shares by MPS")
	}
	if _, plugin := pluginOf(t, valuesFrom("", mpsOn)); !settings(t, plugin).MPS {
		t.Error("the plugin does not share by MPS")
	}
}

// The end of a pod ends its clients: only its owner ends it, and nothing evicts it lightly.
func TestMPSPodsAreLeftAlone(t *testing.T) {
	daemonSet, container := mpsOf(t, valuesFrom("", mpsOn))
	if daemonSet.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("update strategy %s", daemonSet.Spec.UpdateStrategy.Type)
	}
	pod := daemonSet.Spec.Template.Spec
	if pod.PriorityClassName != "system-node-critical" || !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && t.Key == ""
	}) {
		t.Errorf("priority %q, tolerations %v", pod.PriorityClassName, pod.Tolerations)
	}
	if container.LivenessProbe != nil || container.StartupProbe != nil || container.ReadinessProbe == nil {
		t.Error("a probe may end the pod")
	}
	plugin := component(t, valuesFrom("", mpsOn), "kubelet-plugin")
	if cmp.Equal(plugin.Spec.Selector, daemonSet.Spec.Selector) {
		t.Error("both DaemonSets own the same pods")
	}
}

// The pod is privileged, and sees as little of the host as it can do with.
func TestMPSPodSeesLittle(t *testing.T) {
	const dir = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps"
	for set, want := range map[string]map[string]string{
		"":                      {dir: dir, "/driver-root/usr": "/usr", "/dev": "/dev", "/tmp": ""},
		"simulated-values.yaml": {dir: dir, "/driver-root": "/srv/node/driver", "/host/dev": "/srv/node/dev", "/tmp": ""},
	} {
		file := ""
		if set != "" {
			file = filepath.Join(chartDir, "ci", set)
		}
		daemonSet, container := mpsOf(t, valuesFrom(file, mpsOn))
		pod := daemonSet.Spec.Template.Spec
		if *pod.AutomountServiceAccountToken || pod.HostNetwork || pod.HostIPC {
			t.Errorf("%s: the pod has a token or a namespace of the host", set)
		}
		if !pod.HostPID {
			t.Errorf("%s: servers cannot find themselves", set)
		}
		got := map[string]string{}
		for _, m := range container.VolumeMounts {
			v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
			got[m.MountPath] = ""
			if v.HostPath != nil {
				got[m.MountPath] = v.HostPath.Path
			}
			if v.HostPath != nil && v.HostPath.Path == "/" {
				t.Errorf("%s: the host's root is mounted", set)
			}
			if m.MountPath == dir && *m.MountPropagation != corev1.MountPropagationBidirectional {
				t.Errorf("%s: the runtime does not see the shared memory", set)
			}
			if strings.HasPrefix(m.MountPath, "/driver-root") && !m.ReadOnly {
				t.Errorf("%s: the driver can be changed", set)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: host paths by their place in the container (-want +got):\n%s", set, diff)
		}
		if !*container.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("%s: the image can be written to", set)
		}
	}
}

// The daemon's directory is the one in which the plugin looks for it.
func TestMPSDirectoryIsThePlugins(t *testing.T) {
	v := valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml"))
	_, plugin := pluginOf(t, v)
	_, container := mpsOf(t, v)
	for _, want := range []string{"--dir=" + settings(t, plugin).DataDir() + "/mps", "--shm-size=8g"} {
		if !slices.Contains(container.Args, want) {
			t.Errorf("arguments %q lack %s", container.Args, want)
		}
	}
	if !slices.Contains(container.ReadinessProbe.Exec.Command, container.Args[0]) {
		t.Errorf("the probe asks elsewhere: %q", container.ReadinessProbe.Exec.Command)
	}
	if err := refusal(t, valuesFrom("", "sharing.mps.shmSize=8 GB")); !strings.Contains(err, "/sharing/mps/shmSize") {
		t.Errorf("error %q", err)
	}
}

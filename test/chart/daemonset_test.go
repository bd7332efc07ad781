package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/conflict"
)

// component finds the DaemonSet of one part of the driver.
func component(t *testing.T, v Values, name string) *appsv1.DaemonSet {
	t.Helper()
	all := every[*appsv1.DaemonSet](decode(t, render(t, v, reference).Manifest))
	i := slices.IndexFunc(all, func(d *appsv1.DaemonSet) bool { return d.Labels["app.kubernetes.io/component"] == name })
	if i < 0 {
		t.Fatalf("no DaemonSet of %s among %d", name, len(all))
	}
	return all[i]
}

func pluginOf(t *testing.T, v Values) (*appsv1.DaemonSet, *corev1.Container) {
	t.Helper()
	daemonSet := component(t, v, "kubelet-plugin")
	if len(daemonSet.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(daemonSet.Spec.Template.Spec.Containers))
	}
	return daemonSet, &daemonSet.Spec.Template.Spec.Containers[0]
}

// settings parses the container's arguments with the plugin's own flags.
func settings(t *testing.T, container *corev1.Container) *config.Config {
	t.Helper()
	parsed := config.Default()
	flags := pflag.NewFlagSet("plugin", pflag.ContinueOnError)
	parsed.AddFlags(flags)
	logging := logsapi.NewLoggingConfiguration()
	logsapi.AddFlags(logging, flags)
	if err := flags.Parse(container.Args); err != nil {
		t.Fatalf("the plugin does not take its arguments %q: %v", container.Args, err)
	}
	env := map[string]string{}
	for _, e := range container.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			env[e.Name] = map[string]string{
				"spec.nodeName": "node-a", "metadata.uid": "00000000-0000-0000-0000-000000000000",
			}[e.ValueFrom.FieldRef.FieldPath]
		}
	}
	if err := config.ApplyEnv(flags, func(name string) (string, bool) { v, ok := env[name]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestPluginTakesItsSettings(t *testing.T) {
	for _, set := range valueSets(t) {
		t.Run(filepath.Base(set), func(t *testing.T) {
			_, container := pluginOf(t, valuesFrom(set))
			if err := settings(t, container).Validate(); err != nil {
				t.Errorf("the plugin would refuse the chart's settings: %v", err)
			}
		})
	}
}

func TestValuesReachThePlugin(t *testing.T) {
	_, container := pluginOf(t, valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml")))
	got := settings(t, container)
	want := config.Default()
	want.NodeName, want.PodUID = "node-a", "00000000-0000-0000-0000-000000000000"
	want.DriverName = "gpu.example.com"
	want.DriverRoot.Host = "/run/nvidia/driver"
	want.SliceVocabulary, want.ListAttributes, want.DeviceMetadata = "minimal", true, false
	want.MIGDevices, want.MIGForeign = config.MIGOnDemand, false
	want.MIGLayoutFile, want.MIGLayout = "/etc/gpu-dra-driver/mig-layouts/mig.yaml", "all-1g.10gb"
	want.IncludeGPUs = `[{"products":["*H100*"]}]`
	want.ExcludeGPUs = `[{"nodes":["a-*"],"pciAddresses":["0000:1a:00.0"],"uuids":["GPU-1"]}]`
	want.MPS = true
	want.RescanInterval *= 4
	want.ReconcileInterval, want.OrphanGrace, want.WatchOpenDevices = 5*time.Minute, 90*time.Second, true
	want.HealthInterval, want.HealthHoldDown, want.HealthEvict = 10*time.Second, 2*time.Minute, true
	want.HealthReset, want.HealthKernelLog = true, "/run/gpu-dra-driver/kernel-log"
	want.HealthTable, want.ClaimStatus = "/etc/gpu-dra-driver/health/table.yaml", true
	want.APIQPS, want.APIBurst = 50.5, 75
	want.Conflicts = conflict.Policies{DevicePlugin: conflict.Warn, DRAPlugin: conflict.Warn, MIGManager: conflict.Ignore}
	want.HTTPAddress, want.HealthAddress = "0.0.0.0:9090", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// The chart's defaults are the plugin's own, so that both pages of the reference agree.
func TestDefaultsAreThePluginsOwn(t *testing.T) {
	_, container := pluginOf(t, valuesFrom(""))
	want := config.Default()
	want.NodeName, want.PodUID = "node-a", "00000000-0000-0000-0000-000000000000"
	if diff := cmp.Diff(want, settings(t, container)); diff != "" {
		t.Errorf("settings (-plugin +chart):\n%s", diff)
	}
}

func TestPodStaysOffTheHost(t *testing.T) {
	for _, set := range valueSets(t) {
		t.Run(filepath.Base(set), func(t *testing.T) {
			daemonSet, container := pluginOf(t, valuesFrom(set))
			pod := daemonSet.Spec.Template.Spec
			// A value asks for the host's processes, to see who has a GPU open.
			if pod.HostNetwork || pod.HostIPC || pod.HostPID != settings(t, container).WatchOpenDevices {
				t.Error("the pod shares a namespace with the host")
			}
			for _, port := range container.Ports {
				if port.HostPort != 0 {
					t.Errorf("port %s takes port %d of the host: a surge pod could not start", port.Name, port.HostPort)
				}
			}
			if container.SecurityContext.ReadOnlyRootFilesystem == nil || !*container.SecurityContext.ReadOnlyRootFilesystem {
				t.Error("the image can be written to")
			}
		})
	}
}

func TestUpdateNeverLeavesANodeAlone(t *testing.T) {
	daemonSet, container := pluginOf(t, valuesFrom(""))
	update := daemonSet.Spec.UpdateStrategy.RollingUpdate
	if *update.MaxSurge != intstr.FromInt32(1) || *update.MaxUnavailable != intstr.FromInt32(0) {
		t.Errorf("surge %v, unavailable %v", update.MaxSurge, update.MaxUnavailable)
	}
	pod := daemonSet.Spec.Template.Spec
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); diff != "" {
		t.Errorf("tolerations: %s", diff)
	}
	if grace := *pod.TerminationGracePeriodSeconds; float64(grace) <= settings(t, container).ShutdownDeadline.Seconds() {
		t.Errorf("killed after %d s, before calls in flight have ended", grace)
	}
	for name, probe := range map[string]*corev1.Probe{
		"/healthz": container.StartupProbe, "/readyz": container.ReadinessProbe, "/healthz ": container.LivenessProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != strings.TrimSpace(name) ||
			!slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal }) {
			t.Errorf("probe %+v does not ask %s at a port of the container", probe, name)
		}
	}
}

// mounts gives, for each path in the container, the path on the host.
func mounts(t *testing.T, daemonSet *appsv1.DaemonSet) map[string]string {
	t.Helper()
	host := map[string]string{}
	for _, v := range daemonSet.Spec.Template.Spec.Volumes {
		if v.HostPath == nil {
			t.Fatalf("volume %s is not of the host", v.Name)
		}
		host[v.Name] = v.HostPath.Path
	}
	inside := map[string]string{}
	for _, m := range daemonSet.Spec.Template.Spec.Containers[0].VolumeMounts {
		inside[m.MountPath] = host[m.Name]
	}
	if len(inside) != len(host) {
		t.Errorf("%d mounts of %d volumes", len(inside), len(host))
	}
	return inside
}

func TestMounts(t *testing.T) {
	tests := map[string]map[string]string{
		"": {
			"/var/lib/kubelet/plugins/gpu.nvidia.com": "/var/lib/kubelet/plugins/gpu.nvidia.com",
			"/var/lib/kubelet/plugins_registry":       "/var/lib/kubelet/plugins_registry",
			"/var/run/cdi":                            "/var/run/cdi",
			"/driver-root":                            "/",
			"/dev":                                    "/dev",
		},
		filepath.Join(chartDir, "ci", "simulated-values.yaml"): {
			"/var/lib/kubelet/plugins/gpu.nvidia.com": "/var/lib/kubelet/plugins/gpu.nvidia.com",
			"/var/lib/kubelet/plugins_registry":       "/var/lib/kubelet/plugins_registry",
			"/var/run/cdi":                            "/var/run/cdi",
			"/driver-root":                            "/srv/node/driver",
			"/host/dev":                               "/srv/node/dev",
			"/host/proc":                              "/srv/node/proc",
			"/host/sys":                               "/srv/node/sys",
			"/srv/node/state":                         "/srv/node/state",
		},
	}
	for set, want := range tests {
		t.Run(filepath.Base(set), func(t *testing.T) {
			daemonSet, container := pluginOf(t, valuesFrom(set))
			got := mounts(t, daemonSet)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("host paths by their place in the container (-want +got):\n%s", diff)
			}
			s := settings(t, container)
			for view, host := range map[string]string{s.DriverRoot.Container: s.DriverRoot.Host, s.DevRoot.Container: s.DevRoot.Host} {
				if got[view] != host {
					t.Errorf("the plugin is told that %s is the host's %s, but it is %s", view, host, got[view])
				}
			}
			for _, same := range []string{s.DataDir(), s.KubeletRegistryDir, s.CDIDir} {
				if got[same] != same {
					t.Errorf("%s is %q on the host: the kubelet and the runtime would not find it", same, got[same])
				}
			}
		})
	}
}

// Device nodes below the driver root are seen through the driver root's mount: it shows what is
// mounted there later, as when the GPU driver's container starts after this pod.
func TestDeviceNodesBelowTheDriverRoot(t *testing.T) {
	for dev, want := range map[string]string{
		"/run/nvidia/driver/dev":   "/driver-root/dev",
		"/run/nvidia/driver/a/dev": "/driver-root/a/dev",
		"/run/nvidia/driver-dev":   "/host/dev",
		"/dev":                     "/dev",
	} {
		t.Run(dev, func(t *testing.T) {
			daemonSet, container := pluginOf(t, valuesFrom("", "nvidiaDriverRoot=/run/nvidia/driver", "devRoot="+dev))
			s := settings(t, container)
			if s.DevRoot.Container != want || s.DevRoot.Host != dev {
				t.Errorf("the plugin is told %+v, want %s in the container", s.DevRoot, want)
			}
			_, mounted := mounts(t, daemonSet)[want]
			if below := want != "/host/dev" && want != "/dev"; mounted == below {
				t.Errorf("%s is a mount of its own: %t", want, mounted)
			}
		})
	}
}

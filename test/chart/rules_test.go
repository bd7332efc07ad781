package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-dra/driver/pkg/config"
)

// inFile are values from a file: in one, numbers are floats and quoted texts stay texts.
func inFile(t *testing.T, text string) Values {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return valuesFrom(file)
}

func refusal(t *testing.T, v Values) string {
	t.Helper()
	_, err := Render(t.Context(), Release{Name: "x", Namespace: "x", Chart: chartDir, Values: v}, reference)
	if err == nil {
		return ""
	}
	return err.Error()
}

const (
	endpoint   = "kubeletPlugin.metrics.gpuHttpEndpoint"
	healthPort = "kubeletPlugin.containers.gpus.healthcheckPort"
	grace      = "kubeletPlugin.terminationGracePeriodSeconds"
)

// Each of these would make pods that start and end for ever, or that mount another directory
// than the one that was meant. A message names the value and what to do.
func TestValuesThatWouldNotWorkAreRefused(t *testing.T) {
	tests := map[string]struct {
		set  []string
		want []string
	}{
		"no health port":          {[]string{healthPort + "=0"}, []string{healthPort + " 0", "-1 to switch"}},
		"health port too large":   {[]string{healthPort + "=65536"}, []string{"healthcheckPort", "want 65,535"}},
		"port too large":          {[]string{endpoint + "=:65536"}, []string{endpoint, "65536", "1 to 65535"}},
		"port of five nines":      {[]string{endpoint + "=:99999"}, []string{endpoint, "99999", "1 to 65535"}},
		"port zero":               {[]string{endpoint + "=:0"}, []string{endpoint, "1 to 65535"}},
		"port with a zero before": {[]string{endpoint + "=:08080"}, []string{"gpuHttpEndpoint", "does not match"}},
		"one port twice":          {[]string{endpoint + "=:51516"}, []string{healthPort + " 51516", endpoint, "change one"}},
		"loopback":                {[]string{endpoint + "=127.0.0.1:8080"}, []string{endpoint, "127.0.0.1:8080", `leave the host out (":8080")`}},
		"loopback by name":        {[]string{endpoint + "=localhost:81"}, []string{endpoint, `leave the host out (":81")`}},
		"loopback of IPv6":        {[]string{endpoint + "=[::1]:8080"}, []string{endpoint, "leave the host out"}},
		"scans without a pause":   {[]string{"rescanInterval=5ms"}, []string{"rescanInterval", "5ms", "1s to 24h"}},
		"scans never":             {[]string{"rescanInterval=999999999h999999999h"}, []string{"rescanInterval", "1s to 24h"}},
		"a number too long":       {[]string{"rescanInterval=9999999999h"}, []string{"rescanInterval", "does not match"}},
		"holder wait":             {[]string{"holderWait=90s"}, []string{"holderWait", "90s", "0s to 40s", "45s"}},
		"holder wait, in parts":   {[]string{"holderWait=0.5m10s1ms"}, []string{"holderWait", "0s to 40s"}},
		"killed while draining":   {[]string{"shutdownDeadline=300s"}, []string{"shutdownDeadline", "300s", grace + " 60", "to 50s", "to 310"}},
		"killed a little early":   {[]string{"shutdownDeadline=50.5s"}, []string{"shutdownDeadline", "to 50s", "to 61"}},
		"a short period":          {[]string{grace + "=49"}, []string{"shutdownDeadline", "40s", grace + " 49", "to 39s", "to 50"}},
		"a period under 10 s":     {[]string{grace + "=9", "shutdownDeadline=0s"}, []string{"terminationGracePeriodSeconds", "want 10"}},
		"a period of weeks":       {[]string{grace + "=3000000"}, []string{"terminationGracePeriodSeconds", "want 86,400"}},
		"burst":                   {[]string{"kubeAPI.burst=1000000"}, []string{"/kubeAPI/burst", "want 100,000"}},
		"qps":                     {[]string{"kubeAPI.qps=2000000"}, []string{"/kubeAPI/qps", "want 100,000"}},
		"a comment in a path":     {[]string{"nvidiaDriverRoot=/run/a #b"}, []string{"/nvidiaDriverRoot", "does not match"}},
		"a line in a path":        {[]string{"devRoot=/run\n/a"}, []string{"/devRoot", "does not match"}},
		"a line after a path":     {[]string{"procRoot=/a\n"}, []string{"/procRoot", "does not match"}},
		"two dots":                {[]string{"cdiRoot=/var/../etc"}, []string{"/cdiRoot", "does not match"}},
		"two dots at the end":     {[]string{"cdiRoot=/var/run/.."}, []string{"/cdiRoot", "does not match"}},
		"one dot":                 {[]string{"sysRoot=/./a"}, []string{"/sysRoot", "does not match"}},
		"plugins in the root":     {[]string{"kubeletPlugin.kubeletPluginsDirectoryPath=/"}, []string{"/kubeletPluginsDirectoryPath", "does not match"}},
		"registry is the root":    {[]string{"kubeletPlugin.kubeletRegistrarDirectoryPath=/"}, []string{"/kubeletRegistrarDirectoryPath", "does not match"}},
		"CDI specs in the root":   {[]string{"cdiRoot=/"}, []string{"/cdiRoot", "does not match"}},
		"an image with a space":   {[]string{"image.repository=a b"}, []string{"/image/repository", "does not match"}},
		"two classes, one name":   {[]string{"deviceClasses.sharedExtendedResourceName=nvidia.com/gpu"}, []string{"sharedExtendedResourceName", "nvidia.com/gpu", "rename one"}},
		"one share of nothing":    {[]string{"sharing.failRequestsGreaterThanOne=true"}, []string{"failRequestsGreaterThanOne", "name the resource"}},
		"a label's value":         {[]string{"admissionPolicy.sharing.namespaceLabels.team=a b"}, []string{"/admissionPolicy/sharing/namespaceLabels/team", "does not match"}},
		"labels without a policy": {[]string{"admissionPolicy.create=false", "admissionPolicy.adminAccess.namespaceLabels.team=a"}, []string{"admissionPolicy.adminAccess.namespaceLabels", "admissionPolicy.create=true"}},
		"classes without labels":  {[]string{"admissionPolicy.sharing.deviceClasses={small}"}, []string{"admissionPolicy.sharing.deviceClasses", "namespaceLabels"}},
		"no GPU at all":           {[]string{"gpus.include[0].nodes={}", "gpus.exclude[0].uuid=GPU-1"}, []string{"/gpus/exclude/0", "uuid"}},
		"an exclusion of nothing": {[]string{"gpus.exclude[0].uuids={GPU-1}", "gpus.exclude[1]=x"}, []string{"/gpus/exclude/1"}},
		"a GPU by its partition":  {[]string{"gpus.exclude[0].uuids={MIG-1}"}, []string{"/gpus/exclude/0/uuids/0", "does not match"}},
		"a GPU at a short place":  {[]string{"gpus.include[0].pciAddresses={1a:00.0}"}, []string{"/gpus/include/0/pciAddresses/0", "does not match"}},
		"shares by whom":          {[]string{"sharing.devices[0].replicas=4"}, []string{"enforcement"}},
		"shares by magic":         {[]string{"sharing.devices[0].enforcement=magic"}, []string{"/sharing/devices/0/enforcement"}},
		"MPS without daemons":     {[]string{"sharing.devices[0].enforcement=mps", "sharing.devices[0].replicas=2"}, []string{"sharing.devices[0]", "sharing.mps.enabled=true"}},
		"one share":               {[]string{"sharing.devices[0].enforcement=none", "sharing.devices[0].replicas=1"}, []string{"replicas", "want 2"}},
		"shares of a board":       {[]string{"sharing.devices[0].enforcement=none", "sharing.devices[0].devices.pciAddresses={1a}"}, []string{"pciAddresses", "does not match"}},
		"a misspelled share":      {[]string{"sharing.devices[0].enforcement=none", "sharing.devices[0].replica=2"}, []string{"replica"}},
		"shares, and the feature is off": {
			[]string{"sharing.devices[0].enforcement=none", "deviceClasses.consumableCapacity=off"}, []string{"sharing.devices", "DRAConsumableCapacity", "given out whole"},
		},
		"a tag with a colon":           {[]string{"image.tag=a: b"}, []string{"/image/tag", "does not match"}},
		"layouts without MIG":          {[]string{"migLayouts.configMap=mig"}, []string{"migLayouts.configMap", "migDevices", "static"}},
		"a layout of nothing":          {[]string{"migDevices=static", "migLayouts.default=all-1g.10gb"}, []string{"migLayouts.default", "all-1g.10gb", "ConfigMap"}},
		"a layout that no label takes": {[]string{"migLayouts.default=a b"}, []string{"/migLayouts/default", "does not match"}},
		"a key that is a path":         {[]string{"migLayouts.key=../a"}, []string{"/migLayouts/key", "does not match"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := refusal(t, valuesFrom("", tt.set...))
			for _, want := range tt.want {
				if !strings.Contains(err, want) {
					t.Errorf("--set %q: %q; want an error that says %q", tt.set, err, want)
				}
			}
		})
	}
}

// A value set to null is one that is not there: its flag would be empty.
func TestNullIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"holderWait: null": "'holderWait'",
		"kubeletPlugin: {terminationGracePeriodSeconds: null}": "'terminationGracePeriodSeconds'",
		"kubeAPI: {burst: null}":                               "'burst'",
		"image: null":                                          "'image'",
		"deviceClasses: {create: null}":                        "'create'",
	} {
		if err := refusal(t, inFile(t, text)); !strings.Contains(err, "missing property "+want) {
			t.Errorf("%s: %q, want an error that says %s is missing", text, err, want)
		}
	}
	// Whole lists and mappings may be left out.
	rest := `{featureGates: null, selectorLabelsOverride: null, imagePullSecrets: null, kubeletPlugin: {
  tolerations: null, affinity: null, nodeSelector: null, podLabels: null, podAnnotations: null, updateStrategy: null,
  podSecurityContext: null, containers: {gpus: {resources: null, env: null, args: null, securityContext: null}}}}`
	if err := refusal(t, inFile(t, rest)); err != "" {
		t.Error(err)
	}
}

// What is at the edge of the chart's limits is within the plugin's.
func TestPluginTakesWhatTheChartTakes(t *testing.T) {
	for name, text := range map[string]string{
		"largest numbers":   "kubeAPI: {qps: 100000, burst: 100000}\nkubeletPlugin: {terminationGracePeriodSeconds: 86400}\nshutdownDeadline: 86390s",
		"smallest numbers":  "kubeAPI: {qps: 0.00001, burst: 1}\nkubeletPlugin: {terminationGracePeriodSeconds: 10}\nshutdownDeadline: 0s\nholderWait: 0s\nrescanInterval: 1s",
		"longest":           "rescanInterval: 23h59m60s\nholderWait: 0.5m10000ms\nshutdownDeadline: 50s",
		"ports":             "kubeletPlugin: {metrics: {gpuHttpEndpoint: ':65535'}, containers: {gpus: {healthcheckPort: 1}}}",
		"every address":     "kubeletPlugin: {metrics: {gpuHttpEndpoint: '[::]:1'}, containers: {gpus: {healthcheckPort: 65535}}}",
		"no health service": "kubeletPlugin: {metrics: {gpuHttpEndpoint: ':51516'}, containers: {gpus: {healthcheckPort: -1}}}",
		"hidden paths":      "cdiRoot: /var/..a/.b/c..d\nnvidiaDriverRoot: /",
		"verbosity as text": "logVerbosity: '10'",
	} {
		t.Run(name, func(t *testing.T) {
			daemonSet, container := pluginOf(t, inFile(t, text))
			s := settings(t, container)
			if err := s.Validate(); err != nil {
				t.Errorf("the plugin would refuse the chart's settings: %v", err)
			}
			period := time.Duration(*daemonSet.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
			if period-s.ShutdownDeadline < 10*time.Second {
				t.Errorf("killed after %v, with a deadline of %v", period, s.ShutdownDeadline)
			}
			for _, port := range container.Ports {
				if port.ContainerPort < 1 || port.ContainerPort > 65535 {
					t.Errorf("port %+v", port)
				}
			}
		})
	}
}

// The chart computes durations as Go does.
func TestDurationsAreReadAsThePluginReadsThem(t *testing.T) {
	for _, text := range []string{
		"0s", "40s", "40.001s", "40001ms", "39999.9ms", "0.5m", "0.5m10s", "0.5m10.001s", "0.667m", "1m", "0.01h", "0.012h",
		"0h0m40s", "1ms39s999ms", "1ms39s1000ms", "0000040s", "1h",
	} {
		t.Run(text, func(t *testing.T) {
			parsed, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			plugin := config.Default()
			plugin.NodeName, plugin.HolderWait = "node-a", parsed
			byPlugin, byChart := plugin.Validate(), refusal(t, valuesFrom("", "holderWait="+text))
			if (byPlugin == nil) != (byChart == "") {
				t.Errorf("the plugin says %v, the chart %q", byPlugin, byChart)
			}
		})
	}
}

// Texts that YAML reads as numbers, truth or nothing stay texts.
func TestTextsStayTexts(t *testing.T) {
	v := inFile(t, `
nameOverride: "true"
namespaceOverride: "123"
image: {repository: "12", tag: "1.0"}
serviceAccount: {name: "1e3"}
deviceClasses: {extendedResourceName: "1/2"}
kubeletPlugin: {priorityClassName: "yes", podLabels: {a: "on"}}
podMonitor: {enabled: true, interval: "1s", scrapeTimeout: "1s"}
`)
	rendered, err := Render(t.Context(), Release{Name: "1e6", Namespace: "x", Chart: chartDir, Values: v}, reference)
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, rendered.Manifest)
	daemonSet := one[*appsv1.DaemonSet](t, objects)
	pod := daemonSet.Spec.Template
	account := one[*corev1.ServiceAccount](t, objects)
	for what, pair := range map[string][2]string{
		"namespace":      {daemonSet.Namespace, "123"},
		"label":          {pod.Labels["app.kubernetes.io/name"], "true"},
		"release":        {pod.Labels["app.kubernetes.io/instance"], "1e6"},
		"selector":       {daemonSet.Spec.Selector.MatchLabels["app.kubernetes.io/instance"], "1e6"},
		"image":          {pod.Spec.Containers[0].Image, "12:1.0"},
		"account":        {pod.Spec.ServiceAccountName, "1e3"},
		"its name":       {account.Name, "1e3"},
		"its namespace":  {account.Namespace, "123"},
		"binding":        {one[*rbacv1.ClusterRoleBinding](t, objects).Subjects[0].Name, "1e3"},
		"priority class": {pod.Spec.PriorityClassName, "yes"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
	interval, found, err := unstructured.NestedSlice(one[*unstructured.Unstructured](t, objects).Object, "spec", "podMetricsEndpoints")
	if err != nil || !found || interval[0].(map[string]any)["interval"] != "1s" {
		t.Errorf("the PodMonitor's endpoints: %v, %v", interval, err)
	}
}

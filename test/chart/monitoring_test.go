package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// monitoringObject finds the only object of a kind of the Prometheus Operator; nil where there is none.
func monitoringObject(t *testing.T, v Values, kind string) map[string]any {
	t.Helper()
	var found map[string]any
	for _, o := range every[*unstructured.Unstructured](decode(t, render(t, v, reference).Manifest)) {
		if o.GetKind() != kind {
			continue
		}
		if found != nil {
			t.Fatalf("two objects of kind %s", kind)
		}
		found = o.Object
	}
	return found
}

func file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(chartDir, "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A cluster without the Prometheus Operator refuses its objects: nothing of them comes unasked.
func TestMonitoringIsOffByDefault(t *testing.T) {
	objects := decode(t, render(t, valuesFrom(""), reference).Manifest)
	if others := every[*unstructured.Unstructured](objects); len(others) > 0 {
		t.Errorf("objects that a plain cluster does not know: %v", others)
	}
	if maps := every[*corev1.ConfigMap](objects); len(maps) > 0 {
		t.Errorf("%d ConfigMaps", len(maps))
	}
}

// Both monitors scrape the plugin's port in the same way.
func TestMonitors(t *testing.T) {
	for kind, test := range map[string]struct{ value, endpoints string }{
		"PodMonitor": {"podMonitor", "podMetricsEndpoints"}, "ServiceMonitor": {"serviceMonitor", "endpoints"},
	} {
		on := valuesFrom("", test.value+".enabled=true", test.value+".interval=20s", test.value+".labels.release=prometheus")
		monitor := monitoringObject(t, on, kind)
		if monitor == nil {
			t.Fatalf("no %s", kind)
		}
		labels, _, _ := unstructured.NestedStringMap(monitor, "metadata", "labels")
		if labels["release"] != "prometheus" {
			t.Errorf("%s: labels %v", kind, labels)
		}
		endpoints, _, _ := unstructured.NestedSlice(monitor, "spec", test.endpoints)
		want := []any{map[string]any{
			"port": "http", "path": "/metrics", "interval": "20s", "honorLabels": true,
			"relabelings": []any{map[string]any{"sourceLabels": []any{"__meta_kubernetes_pod_node_name"}, "targetLabel": "node"}},
		}}
		if diff := cmp.Diff(want, endpoints); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
	_, err := Render(t.Context(), Release{
		Name: "r", Namespace: "n", Chart: chartDir, Values: valuesFrom("", "podMonitor.enabled=true", "serviceMonitor.enabled=true"),
	}, reference)
	if err == nil || !strings.Contains(err.Error(), "scraped twice") {
		t.Errorf("both monitors at once: %v", err)
	}
}

// The ServiceMonitor finds the Service, which finds the plugin's pods and their port.
func TestMetricsService(t *testing.T) {
	v := valuesFrom("", "serviceMonitor.enabled=true", `kubeletPlugin.metrics.gpuHttpEndpoint=:9999`)
	service := one[*corev1.Service](t, decode(t, render(t, v, reference).Manifest))
	wanted, _, _ := unstructured.NestedStringMap(monitoringObject(t, v, "ServiceMonitor"), "spec", "selector", "matchLabels")
	if len(wanted) < 2 {
		t.Errorf("the monitor selects by %v", wanted)
	}
	for key, value := range wanted {
		if service.Labels[key] != value {
			t.Errorf("the Service has %s=%q, the monitor wants %q", key, service.Labels[key], value)
		}
	}
	daemonSet, plugin := pluginOf(t, v)
	if diff := cmp.Diff(daemonSet.Spec.Selector.MatchLabels, service.Spec.Selector); diff != "" {
		t.Errorf("pods (-DaemonSet's +Service's):\n%s", diff)
	}
	port, found := service.Spec.Ports[0], false
	for _, p := range plugin.Ports {
		found = found || p.Name == port.TargetPort.StrVal && p.ContainerPort == 9999
	}
	if !found || port.Name != "http" || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("port %v of %v", port, plugin.Ports)
	}
}

// What is installed is the files that test/chart/monitoring tries out, with the release's names in them.
func TestRulesAndDashboardAreTheFiles(t *testing.T) {
	v := valuesFrom("", "prometheusRule.enabled=true", "grafanaDashboard.enabled=true", "prometheusRule.runbookURL=https://example.com/r",
		"prometheusRule.labels.release=prometheus", "grafanaDashboard.annotations.folder=GPUs", "fullnameOverride=gpus")
	rule := monitoringObject(t, v, "PrometheusRule")
	text := strings.NewReplacer("RUNBOOK_URL", "https://example.com/r", "DAEMONSET_NAME", "gpus-kubelet-plugin").Replace(file(t, "rules.yaml"))
	var want any
	if err := yaml.UnmarshalStrict([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, rule["spec"]); diff != "" {
		t.Errorf("rules (-file +chart):\n%s", diff)
	}
	if labels, _, _ := unstructured.NestedStringMap(rule, "metadata", "labels"); labels["release"] != "prometheus" {
		t.Errorf("labels %v", labels)
	}
	daemonSet, _ := pluginOf(t, v)
	if daemonSet.Name != "gpus-kubelet-plugin" {
		t.Errorf("the alert is about another DaemonSet than %s", daemonSet.Name)
	}
	dashboard := one[*corev1.ConfigMap](t, decode(t, render(t, v, reference).Manifest))
	if got := dashboard.Data["gpu-dra-driver.json"]; strings.TrimSpace(got) != strings.TrimSpace(file(t, "dashboard.json")) {
		t.Error("the dashboard is not that of the file")
	}
	if dashboard.Labels["grafana_dashboard"] != "1" || dashboard.Annotations["folder"] != "GPUs" {
		t.Errorf("labels %v, annotations %v", dashboard.Labels, dashboard.Annotations)
	}
}

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// busy is what every pod's GPU is busy, in percent: more than the example wants.
const busy = "90"

// autoscale has the autoscaler read the metric of the example by the name that it has there, and
// want more replicas. No Prometheus runs here: the test answers the custom metrics API in the place of
// its adapter.
func autoscale(p *pack) {
	p.metricsAPI("gpu_utilization")
	p.apply()
	for _, pod := range p.up(2, "app=autoscaled") {
		p.holds(pod, 1)
	}
	p.must(rig.Wait(p.Context(), packLimit, "the autoscaler wants more replicas", func(ctx context.Context) (string, error) {
		hpa, err := p.client.AutoscalingV2().HorizontalPodAutoscalers(p.namespace).Get(ctx, "autoscaled", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		reasons := map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{}
		for _, c := range hpa.Status.Conditions {
			reasons[c.Type] = c.Reason
		}
		for _, m := range hpa.Status.CurrentMetrics {
			// It waits for a minute before it scales up.
			waits := reasons[autoscalingv2.AbleToScale] == "ScaleUpStabilized" || hpa.Status.DesiredReplicas > 2
			if m.Pods != nil && m.Pods.Current.AverageValue.String() == busy && reasons[autoscalingv2.ScalingActive] == "ValidMetricFound" && waits {
				return "", nil
			}
		}
		return fmt.Sprintf("conditions %v, metrics %v", hpa.Status.Conditions, hpa.Status.CurrentMetrics), nil
	}))
}

// metricsAPI serves one metric of all pods as custom.metrics.k8s.io until the test ends.
func (p *pack) metricsAPI(metric string) {
	p.Helper()
	server := httptest.NewUnstartedServer(p.answer(metric))
	server.Listener.Close()
	var err error
	server.Listener, err = new(net.ListenConfig).Listen(p.Context(), "tcp", net.JoinHostPort(p.outerAddress(), "0"))
	p.must(err)
	server.StartTLS()
	p.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	p.must(err)
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: metrics}
spec:
  ports: [{port: %[1]s}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics, labels: {kubernetes.io/service-name: metrics}}
addressType: IPv4
endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]
ports: [{port: %[1]s}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta2.custom.metrics.k8s.io}
spec:
  service: {name: metrics, namespace: %[3]s, port: %[1]s}
  group: custom.metrics.k8s.io
  version: v1beta2
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`, port, p.outerAddress(), p.namespace)
	p.Cleanup(func() {
		if out, err := p.try(context.WithoutCancel(p.Context()), "", "delete", "apiservice", "--ignore-not-found", "v1beta2.custom.metrics.k8s.io"); err != nil {
			p.Errorf("end of the test: %v: %s", err, out)
		}
	})
	p.run(manifest, "apply", "-f", "-")
}

// outerAddress is where the API server reaches this process.
func (p *pack) outerAddress() string {
	p.Helper()
	config, err := p.Nodes.RESTConfig()
	p.must(err)
	server, err := url.Parse(config.Host)
	p.must(err)
	// Nothing is sent: this asks for the way to there.
	conn, err := new(net.Dialer).DialContext(p.Context(), "udp", net.JoinHostPort(server.Hostname(), "443"))
	p.must(err)
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	p.must(err)
	return host
}

func (p *pack) answer(metric string) http.HandlerFunc {
	const group = "custom.metrics.k8s.io/v1beta2"
	write := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(object); err != nil {
			p.Errorf("metrics API: %v", err)
		}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		rest, known := strings.CutPrefix(r.URL.Path, "/apis/"+group)
		parts := strings.Split(strings.Trim(rest, "/"), "/")
		switch {
		case known && rest == "":
			write(w, metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: group,
				APIResources: []metav1.APIResource{{Name: "pods/" + metric, Namespaced: true, Kind: "MetricValueList", Verbs: metav1.Verbs{"get"}}},
			})
		case known && len(parts) == 5 && parts[0] == "namespaces" && parts[2] == "pods" && parts[4] == metric:
			pods, err := p.client.CoreV1().Pods(parts[1]).List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			items := []map[string]any{}
			for _, pod := range pods.Items {
				items = append(items, map[string]any{
					"describedObject": corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
					"metric":          map[string]any{"name": metric}, "timestamp": metav1.NewTime(time.Now()), "value": busy,
				})
			}
			write(w, map[string]any{"apiVersion": group, "kind": "MetricValueList", "metadata": map[string]any{}, "items": items})
		default:
			http.NotFound(w, r)
		}
	}
}

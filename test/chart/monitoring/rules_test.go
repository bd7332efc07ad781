package monitoring

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"
)

// rules are all rules of the chart, by name.
func rules(t testing.TB) map[string]rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("DAEMONSET_NAME", daemonSet, "RUNBOOK_URL", "https://example.com/runbooks").Replace(string(text))
	groups, errs := rulefmt.Parse([]byte(filled), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			name := r.Alert + r.Record
			if _, twice := out[name]; twice {
				t.Errorf("two rules have the name %s", name)
			}
			out[name] = r
		}
	}
	return out
}

func TestRulesFitTheMetrics(t *testing.T) {
	c := newCluster(t)
	for name, r := range rules(t) {
		t.Run(name, func(t *testing.T) {
			c.checkQuery(t, r.Expr)
			if r.Alert != "" && (r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["runbook_url"] == "") {
				t.Errorf("an alert needs a severity, a summary and a runbook: %v %v", r.Labels, r.Annotations)
			}
		})
	}
}

// fired are the label sets for which an alert is on, with "node=…" alone where nothing else is asked for.
func (c cluster) fired(t testing.TB, r rulefmt.Rule, of ...string) []string {
	t.Helper()
	var out []string
	for _, sample := range c.ask(t, r.Expr) {
		var parts []string
		for _, name := range append([]string{"node"}, of...) {
			parts = append(parts, sample.Metric.Get(name))
		}
		out = append(out, strings.Join(parts, " "))
		for _, text := range r.Annotations {
			expand(t, r.Alert, text, sample.Metric, sample.F)
		}
	}
	slices.Sort(out)
	return out
}

// expand fills a text of an alert in, as Prometheus would; every label that it names must be there.
func expand(t testing.TB, alert, text string, l labels.Labels, value float64) {
	t.Helper()
	data := template.AlertTemplateData(l.Map(), nil, "", promqlSample(value))
	prefix := "{{$labels := .Labels}}{{$value := .Value}}"
	got, err := template.NewTemplateExpander(context.Background(), prefix+text, alert, data, 0, nil, &url.URL{}, []string{"missingkey=error"}).Expand()
	if err != nil || got == "" {
		t.Errorf("%s: %q: %q, %v", alert, text, got, err)
	}
}

// What is wrong on the recorded node is told, and nothing else; the well node is left in peace.
func TestRecordedNode(t *testing.T) {
	c := newCluster(t)
	want := map[string][]string{
		"GPUSick":          {sick + " gpu-0000-1b-00-0"},
		"GPUPartitionSick": {sick + " gpu-0000-43-00-0-mig-1g-10gb-0"},
		"PodHasSickGPU":    {sick + " gpu-0000-1b-00-0"},
		"GPUNVLinkDown":    {sick + " gpu-0000-52-00-0"},
	}
	for name, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if got := c.fired(t, r, "device"); !slices.Equal(got, want[name]) {
			t.Errorf("%s is on for %q, want %q", name, got, want[name])
		}
	}
}

// Each alert comes when what it is about happens to the well node.
func TestAlertsCome(t *testing.T) {
	const gpu = "gpu-0000-9d-00-0"
	all := rules(t)
	tests := map[string]struct {
		changes []change
		// of are labels, want their values with the node before.
		of   []string
		want []string
	}{
		"GPUSick":                 {[]change{{series: `gpu_dra_device_severity\{device="` + gpu + `"\}`, values: "2"}}, []string{"device"}, []string{gpu}},
		"GPUPartitionSick":        {[]change{{series: `gpu_dra_device_severity\{device=".*mig.*"\}`, values: "2"}}, []string{"device"}, []string{"gpu-0000-43-00-0-mig-1g-10gb-0"}},
		"PodHasSickGPU":           {[]change{{series: `gpu_dra_device_severity\{device="gpu-0000-1b-00-0"\}`, values: "3"}}, []string{"namespace", "pod"}, []string{"default user"}},
		"GPUUnusable":             {[]change{{series: `gpu_dra_unusable_gpus`, values: "2"}}, nil, []string{""}},
		"GPUDriverDown":           {[]change{{series: `gpu_dra_gpu_driver_up`, values: "0"}}, nil, []string{""}},
		"GPUReadingsStale":        {[]change{{series: `gpu_dra_gpu_last_reading.*` + gpu + `.*`, values: "3000"}}, []string{"device"}, []string{gpu}},
		"GPUMemoryErrors":         {[]change{{series: `gpu_dra_gpu_ecc_errors_total\{device="` + gpu + `",type="uncorrected"\}`, values: "0x200 1x40"}}, []string{"device"}, []string{gpu}},
		"GPUNVLinkDown":           {[]change{{series: `gpu_dra_gpu_nvlink_links\{device="` + gpu + `",state="down"\}`, values: "1"}}, []string{"device"}, []string{gpu}},
		"GPUNVLinkErrors":         {[]change{{series: `gpu_dra_gpu_nvlink_errors_total\{device="` + gpu + `"\}`, values: "0+600x240"}}, []string{"device"}, []string{gpu}},
		"GPUPluginDown":           {[]change{{series: `kube_daemonset.*`, values: "1"}}, nil, []string{""}},
		"GPUPluginNotRegistered":  {[]change{{series: `gpu_dra_kubelet_registered`, values: "0"}}, nil, []string{""}},
		"GPUNodeWithoutPublisher": {[]change{{series: `gpu_dra_publishing`, values: "0"}}, nil, []string{""}},
		"GPUPublishFails":         {[]change{{series: `gpu_dra_publish_duration_seconds_count\{result="failure"\}`, values: "0+1x240"}}, nil, []string{""}},
		"GPUPrepareFails":         {[]change{{series: `gpu_dra_call_failures_total\{operation="prepare",reason="(held|cdi)"\}`, values: "0+1x240"}}, []string{"reason"}, []string{"cdi"}},
		"GPUUnprepareFails":       {[]change{{series: `gpu_dra_call_failures_total\{operation="unprepare",reason="hardware"\}`, values: "0+1x240"}}, []string{"reason"}, []string{"hardware"}},
		"GPUPrepareSlow": {[]change{
			{series: `gpu_dra_call_duration_seconds_bucket\{operation="prepare",result="success",le="(8|16|32|45|\+Inf)"\}`, values: "0+1x240"},
		}, nil, []string{""}},
		"GPUCallHangs":      {[]change{{series: `gpu_dra_calls_in_flight\{operation="prepare"\}`, values: "1"}}, []string{"operation"}, []string{"prepare"}},
		"GPURecordSetAside": {[]change{{series: `gpu_dra_quarantined_records_total`, values: "0x200 1x40"}}, nil, []string{""}},
		"GPUClaimsOrphaned": {[]change{{series: `gpu_dra_orphans_kept`, values: "1"}}, nil, []string{""}},
		"GPUPartitionStuck": {[]change{{series: `gpu_dra_mig_instances_in_use`, values: "1"}}, nil, []string{""}},
		"GPULayoutFailed":   {[]change{{series: `gpu_dra_mig_layout_gpus\{state="failed"\}`, values: "1"}}, nil, []string{""}},
		"GPUSharingDown":    {[]change{{series: `gpu_dra_mps_daemons\{state="down"\}`, values: "1"}}, nil, []string{""}},
	}
	for name, r := range all {
		test, ok := tests[name]
		if r.Alert == "" {
			continue
		}
		if !ok {
			t.Errorf("nobody has tried whether %s comes", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, w := range test.want {
				want = append(want, strings.TrimSpace(well+" "+w))
			}
			got := slices.DeleteFunc(newCluster(t, test.changes...).fired(t, r, test.of...), func(s string) bool { return strings.HasPrefix(s, sick) })
			if !slices.Equal(got, want) {
				t.Errorf("it is on for %q, want %q", got, want)
			}
		})
	}
}

// A GPU that is ill takes its partitions with it: that is one alert, not one for each of them.
func TestPartitionsOfASickGPUAreQuiet(t *testing.T) {
	c := newCluster(t, change{series: `gpu_dra_device_severity\{device="gpu-0000-43-00-0.*"\}`, values: "3"})
	all := rules(t)
	for name, want := range map[string]int{"GPUSick": 1, "GPUPartitionSick": 0} {
		got := slices.DeleteFunc(c.fired(t, all[name]), func(s string) bool { return s != well })
		if len(got) != want {
			t.Errorf("%s is on %d times, want %d", name, len(got), want)
		}
	}
}

func TestRecords(t *testing.T) {
	c := newCluster(t, change{series: `gpu_dra_gpu_utilization_ratio\{device="gpu-0000-1b-00-0"\}`, values: "0.5"})
	all := rules(t)
	for name, want := range map[string]string{
		// Both nodes have the same pod: one is busy.
		"namespace_pod:gpu_utilization:avg": fmt.Sprintf("default user %v", (0.5+busy(t))/2),
		"namespace:gpu_devices:count":       "default  2",
	} {
		var got []string
		for _, s := range c.ask(t, all[name].Expr) {
			got = append(got, fmt.Sprintf("%s %s %v", s.Metric.Get("namespace"), s.Metric.Get("pod"), s.F))
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s gives %q, want %q", name, got, want)
		}
	}
}

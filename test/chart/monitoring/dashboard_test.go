package monitoring

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"go.yaml.in/yaml/v3"
)

func promqlSample(value float64) promql.Sample { return promql.Sample{F: value} }

// busy is the utilization of the GPU that is in use on the recorded node.
func busy(t testing.TB) float64 {
	t.Helper()
	value, err := strconv.ParseFloat(recorded(t)[`gpu_dra_gpu_utilization_ratio{device="gpu-0000-1b-00-0"}`], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource struct{ UID string }
	Targets    []struct{ Expr, RefID, LegendFormat string }
}

func dashboard(t testing.TB) (panels []panel, variables []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Panels     []panel
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || len(d.Panels) < 20 {
		t.Fatalf("dashboard %q %q with %d panels", d.UID, d.Title, len(d.Panels))
	}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	return d.Panels, variables
}

// filled puts in what Grafana would for all nodes.
func filled(t testing.TB, query string) string {
	t.Helper()
	out := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(query)
	if strings.Contains(strings.ReplaceAll(out, `"$1"`, ""), "$") {
		t.Errorf("a variable that Grafana does not know: %s", out)
	}
	return out
}

// Without claims that have steps there are no series of those: they appear with the first.
func appearsLater(query string) bool {
	return strings.Contains(query, "gpu_dra_step_")
}

func TestDashboardFitsTheMetrics(t *testing.T) {
	c := newCluster(t)
	panels, variables := dashboard(t)
	if strings.Join(variables, " ") != "datasource node" {
		t.Errorf("variables %q", variables)
	}
	ids := map[int]bool{}
	for _, p := range panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %d: title %q, %d queries, data source %q", p.ID, p.Title, len(p.Targets), p.Datasource.UID)
		}
		for _, target := range p.Targets {
			query := filled(t, target.Expr)
			if appearsLater(query) {
				c.ask(t, query)
				continue
			}
			c.checkQuery(t, query)
			c.checkLegend(t, p.Title, query, target.LegendFormat)
		}
	}
}

// checkLegend wants the labels that a legend names in what the query gives.
func (c cluster) checkLegend(t *testing.T, title, query, legend string) {
	t.Helper()
	for _, sample := range c.ask(t, query) {
		for _, m := range regexp.MustCompile(`\{\{([a-z_]+)\}\}`).FindAllStringSubmatch(legend, -1) {
			if sample.Metric.Get(m[1]) == "" {
				t.Errorf("%s: the legend names %s, which %s has not", title, m[1], sample.Metric)
			}
		}
	}
}

// Panels lie side by side, and in the grid's 24 columns.
func TestPanelsDoNotOverlap(t *testing.T) {
	panels, _ := dashboard(t)
	for i, p := range panels {
		a := p.GridPos
		if a.W < 1 || a.H < 1 || a.X+a.W > 24 {
			t.Errorf("%s: %+v", p.Title, a)
		}
		for _, q := range panels[:i] {
			b := q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s and %s overlap", p.Title, q.Title)
			}
		}
	}
}

// The queries that the documentation gives work, too.
func TestDocumentedQueries(t *testing.T) {
	text, err := os.ReadFile("../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	queries := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(queries) < 5 {
		t.Fatalf("%d queries", len(queries))
	}
	c := newCluster(t)
	for _, q := range queries {
		c.checkQuery(t, q[1])
		if len(c.ask(t, q[1])) == 0 {
			t.Errorf("nothing comes of %s", q[1])
		}
	}
}

// The rule for prometheus-adapter of the documentation gives each pod a number that an autoscaler can
// compare, as the adapter would ask for the pods of a namespace.
func TestAdapterRule(t *testing.T) {
	text, err := os.ReadFile("../../../docs/autoscaling.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(rules:.*?)```").FindStringSubmatch(string(text))
	if block == nil {
		t.Fatal("docs/autoscaling.md has no rule")
	}
	var config struct {
		Rules []struct {
			SeriesQuery  string `yaml:"seriesQuery"`
			MetricsQuery string `yaml:"metricsQuery"`
			Resources    struct{ Overrides map[string]map[string]string }
		}
	}
	if err := yaml.Unmarshal([]byte(block[1]), &config); err != nil {
		t.Fatal(err)
	}
	// What Prometheus records of the recorded node and a busy one, it has as a series itself.
	half := change{series: `gpu_dra_gpu_utilization_ratio\{device="gpu-0000-1b-00-0"\}`, values: "0.5"}
	const record = "namespace_pod:gpu_utilization:avg"
	var has []change
	for _, sample := range newCluster(t, half).ask(t, rules(t)[record].Expr) {
		series := fmt.Sprintf("%s{namespace=%q,pod=%q}", record, sample.Metric.Get("namespace"), sample.Metric.Get("pod"))
		has = append(has, change{series: series, values: fmt.Sprint(sample.F), isNew: true})
	}
	c := newCluster(t, has...)
	for _, r := range config.Rules {
		c.checkQuery(t, r.SeriesQuery)
		filled := strings.NewReplacer("<<.Series>>", record, "<<.GroupBy>>", "pod", "<<.LabelMatchers>>", `namespace="default",pod=~"user|other"`)
		query := filled.Replace(r.MetricsQuery)
		c.checkQuery(t, query)
		got := c.ask(t, query)
		if want := 100 * (0.5 + busy(t)) / 2; len(got) != 1 || got[0].Metric.Get("pod") != "user" || math.Abs(got[0].F-want) > 1e-9 {
			t.Errorf("%s gives %v, want %v of the pod user", query, got, want)
		}
		for _, label := range []string{"namespace", "pod"} {
			if r.Resources.Overrides[label]["resource"] != label {
				t.Errorf("label %s is %v", label, r.Resources.Overrides[label])
			}
		}
	}
}

package monitoring

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

const (
	chart = "../../../deployments/helm/gpu-dra-driver/files"
	// sick is the recorded node, well another of the same kind on which nothing is wrong.
	sick, well = "node-1", "node-2"
	daemonSet  = "gpu-dra-driver-kubelet-plugin"
)

// now is when queries are asked: two hours of samples lie before.
func now() time.Time { return time.Unix(0, 0).Add(2 * time.Hour) }

// change gives series, by a regular expression that their name and labels match in full, other values
// than the recorded ones: in the notation of Prometheus' test files, "3" or "0+1x240".
type change struct {
	series, values string
	// isNew tells that it is one series more, by its name and labels.
	isNew bool
}

// cluster is what a Prometheus has of two nodes, as the chart's monitors have it scrape them.
type cluster struct {
	engine  *promql.Engine
	storage storage.Storage
}

// recorded are the series of the recorded answer, with their values.
func recorded(t testing.TB) map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "node.prom"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	out := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.HasPrefix(line, "#") {
			out[line[:i]] = line[i+1:]
		}
	}
	if len(out) < 100 {
		t.Fatalf("only %d series are recorded", len(out))
	}
	return out
}

// wellness makes the recorded node a well one.
func wellness() []change {
	return []change{
		{series: `gpu_dra_device_severity.*`, values: "0"}, {series: `gpu_dra_gpu_fault.*`, values: "_"}, {series: `gpu_dra_gpu_nvlink_links\{.*down.*`, values: "0"}, {series: `gpu_dra_gpu_xid_errors_total.*`, values: "_"},
	}
}

// newCluster has the sick node as it is recorded and the well one with the changes. Readings are new.
func newCluster(t testing.TB, changes ...change) cluster {
	t.Helper()
	var load strings.Builder
	load.WriteString("load 30s\n")
	fresh := change{series: `gpu_dra_gpu_last_reading_timestamp_seconds.*`, values: "0+30x240"}
	for node, list := range map[string][]change{sick: {fresh}, well: slices.Concat(wellness(), []change{fresh}, changes)} {
		series := recorded(t)
		series[`kube_daemonset_status_number_unavailable{daemonset="`+daemonSet+`"}`] = "0"
		for _, c := range list {
			matched := c.isNew
			if c.isNew {
				series[c.series] = c.values
				continue
			}
			for name := range series {
				if regexp.MustCompile("^(" + c.series + ")$").MatchString(name) {
					series[name], matched = c.values, true
				}
			}
			if !matched {
				t.Fatalf("no series matches %s", c.series)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(series)) {
			values := series[name]
			if values == "_" {
				continue
			}
			if !strings.Contains(values, "x") {
				values += "+0x240"
			}
			fmt.Fprintf(&load, "  %s %s\n", labelled(name, node), values)
		}
	}
	return cluster{
		engine:  promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Hour, LookbackDelta: 5 * time.Minute}),
		storage: promqltest.LoadedStorage(t, load.String()),
	}
}

// labelled adds the labels of the target, which give way to those of the series: honorLabels.
func labelled(series, node string) string {
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	target := map[string]string{
		"node": node, "instance": node + ":8080", "job": "gpu-dra-driver/kubelet-plugin", "namespace": "gpu-dra-driver", "pod": "plugin-of-" + node,
	}
	var parts []string
	if labels != "" {
		parts = append(parts, labels)
	}
	for _, key := range slices.Sorted(maps.Keys(target)) {
		if !regexp.MustCompile(`(^|,)` + key + `="`).MatchString(labels) {
			parts = append(parts, fmt.Sprintf("%s=%q", key, target[key]))
		}
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

// ask evaluates a query; what fails there would fail in Prometheus.
func (c cluster) ask(t testing.TB, query string) promql.Vector {
	t.Helper()
	asked, err := c.engine.NewInstantQuery(context.Background(), c.storage, nil, query, now())
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer asked.Close()
	result := asked.Exec(context.Background())
	if result.Err != nil {
		t.Fatalf("%s: %v", query, result.Err)
	}
	if len(result.Warnings) > 0 {
		t.Errorf("%s: %v", query, result.Warnings)
	}
	if scalar, err := result.Scalar(); err == nil {
		return promql.Vector{{F: scalar.V}}
	}
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return append(promql.Vector{}, vector...)
}

// checkQuery wants every selector of a query to select something, and every label that it groups or
// joins by to be there: a metric that was renamed, or a label that is gone, is found so.
func (c cluster) checkQuery(t testing.TB, query string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	c.ask(t, query)
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			plain := *n
			plain.OriginalOffset, plain.Timestamp = 0, nil
			if len(c.ask(t, plain.String())) == 0 {
				t.Errorf("%s: nothing is selected by %s", query, plain.String())
			}
		case *parser.AggregateExpr:
			c.checkLabels(t, query, n.Expr, n.Grouping)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil && n.VectorMatching.On {
				c.checkLabels(t, query, n.LHS, n.VectorMatching.MatchingLabels)
				c.checkLabels(t, query, n.RHS, n.VectorMatching.MatchingLabels)
				one := n.RHS
				if n.VectorMatching.Card == parser.CardOneToMany {
					one = n.LHS
				}
				c.checkLabels(t, query, one, n.VectorMatching.Include)
			}
		}
		return nil
	})
}

// checkLabels looks for labels in what an expression gives, or, where that gives nothing now, in what
// its selectors give.
func (c cluster) checkLabels(t testing.TB, query string, expr parser.Expr, labels []string) {
	t.Helper()
	found := map[string]bool{}
	note := func(v promql.Vector) {
		for _, sample := range v {
			for name := range sample.Metric.Map() {
				found[name] = true
			}
		}
	}
	note(c.ask(t, expr.String()))
	if len(found) == 0 {
		for _, selectors := range parser.ExtractSelectors(expr) {
			matchers := make([]string, len(selectors))
			for i, m := range selectors {
				matchers[i] = m.String()
			}
			note(c.ask(t, "{"+strings.Join(matchers, ",")+"}"))
		}
		// What label_replace makes.
		for _, m := range regexp.MustCompile(`label_replace\([^"]*"([a-z]+)"`).FindAllStringSubmatch(expr.String(), -1) {
			found[m[1]] = true
		}
	}
	for _, l := range labels {
		if !found[l] {
			t.Errorf("%s: %s has no label %s", query, expr, l)
		}
	}
}

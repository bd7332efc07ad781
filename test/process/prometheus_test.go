//go:build prometheus

package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/loopback"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/scheduler"
)

// prometheus is a running Prometheus.
type prometheus struct {
	bed     *process.Bed
	address string
}

// startPrometheus has a Prometheus scrape a plugin every second, as the chart's monitors would, with the chart's rules. Nothing
// that lasts a second is waited for any longer.
func startPrometheus(t *testing.T, b *process.Bed, plugin *process.Plugin) prometheus {
	t.Helper()
	program := os.Getenv("PROMETHEUS")
	if program == "" {
		t.Fatal("PROMETHEUS names no program: make monitoring builds one")
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	text, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/files/rules.yaml")
	must(t, err)
	filled := strings.NewReplacer("DAEMONSET_NAME", "plugin", "RUNBOOK_URL", "https://example.com/runbooks").Replace(string(text))
	rules := write("rules.yaml", regexp.MustCompile(`(?m)^(\s+for): \d+m$`).ReplaceAllString(filled, "$1: 1s"))
	config := write("prometheus.yaml", fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: gpu-dra-driver/kubelet-plugin
  honor_labels: true
  static_configs:
  - targets: [%s]
    labels: {node: %s}
`, rules, plugin.HTTP, process.NodeName))
	p := prometheus{b, loopback.Address(9090)}
	ctx, stop := context.WithCancel(context.Background())
	log := write("log", "")
	file, err := os.OpenFile(log, os.O_WRONLY, 0)
	must(t, err)
	cmd := exec.CommandContext(ctx, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	cmd.Stdout, cmd.Stderr = file, file
	must(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
		if text, err := os.ReadFile(log); t.Failed() {
			t.Logf("log of Prometheus: %v\n%s", err, text)
		}
	})
	return p
}

// get asks its API.
func (p prometheus) get(path string, query url.Values, into any) error {
	request, err := http.NewRequestWithContext(p.bed.Context(), http.MethodGet, "http://"+p.address+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, &struct{ Data any }{into})
}

// firing are the alerts that fire, with device and pod.
func (p prometheus) firing() ([]string, error) {
	var found struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	err := p.get("alerts", nil, &found)
	var out []string
	for _, a := range found.Alerts {
		if a.State == "firing" {
			out = append(out, strings.TrimSpace(fmt.Sprint(a.Labels["alertname"], " ", a.Labels["device"], " ", a.Labels["pod"])))
		}
	}
	slices.Sort(out)
	return out, err
}

// fires waits until exactly those alerts fire.
func (p prometheus) fires(t *testing.T, want ...string) {
	t.Helper()
	p.bed.Eventually("alerts", func() error {
		got, err := p.firing()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("alerts (-want +got):\n%s", diff)
		}
		return nil
	})
}

// answers waits until a query gives something.
func (p prometheus) answers(t *testing.T, query string) {
	t.Helper()
	p.bed.Eventually("result of "+query, func() error {
		var found struct{ Result []any }
		if err := p.get("query", url.Values{"query": {query}}, &found); err != nil {
			return err
		}
		if len(found.Result) == 0 {
			return fmt.Errorf("nothing")
		}
		return nil
	})
}

// A real Prometheus scrapes the plugin: it takes the chart's rules, alerts come with a fault and go with it, and every query of the
// dashboard gives something.
func TestWithPrometheus(t *testing.T) {
	b := process.New(t, "hgx-h100-8")
	must(t, b.Node.SetMIGMode(1, true))
	_, err := b.Node.CreateMIG(1, "1g.10gb", 0)
	must(t, err)
	plugin := b.Start(held(), process.Flag("mig-devices", "static"), process.Flag("health-interval", "1s"))
	plugin.WaitReady()
	user := pod("user", "claim")
	claim := b.Allocated("claim", []int{0}, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{scheduler.Consumer(user)}
	})
	prepare(t, b, claim, 0)
	p := startPrometheus(t, b, plugin)
	p.answers(t, "gpu_dra_gpu_temperature_celsius")
	p.rulesAreEvaluated(t)
	p.fires(t)

	must(t, b.Node.SetRecoveryAction(0, 1))
	must(t, b.Node.InjectXID(0, gpusim.XID{Code: 79}))
	p.fires(t, "GPUSick "+b.Device(0), "PodHasSickGPU "+b.Device(0)+" user")
	p.dashboardAnswers(t, b)
	must(t, b.Node.SetRecoveryAction(0, 0))
	p.fires(t)
	unprepare(t, b, claim)
}

// rulesAreEvaluated waits until each rule was evaluated without an error.
func (p prometheus) rulesAreEvaluated(t *testing.T) {
	t.Helper()
	p.bed.Eventually("rules", func() error {
		var found struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.get("rules", nil, &found); err != nil {
			return err
		}
		n := 0
		for _, g := range found.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health != "ok" {
					return fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if n < 20 {
			return fmt.Errorf("%d rules", n)
		}
		return nil
	})
}

// dashboardAnswers asks each query of the dashboard, while calls come and fail.
func (p prometheus) dashboardAnswers(t *testing.T, b *process.Bed) {
	t.Helper()
	text, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/files/dashboard.json")
	must(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &dashboard))
	claim, thief := b.Allocated("again", []int{4}), b.Allocated("thief", []int{0})
	n := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$node", process.NodeName).Replace(target.Expr)
			// Steps are those of partitions and shares, which nobody has here.
			if strings.Contains(query, "gpu_dra_step_") {
				continue
			}
			n++
			if strings.Contains(query, "_bucket") || strings.Contains(query, "failures") {
				prepare(t, b, claim, 4)
				refused(t, b, thief, "default/claim")
				unprepare(t, b, claim)
			}
			p.answers(t, query)
		}
	}
	if n < 30 {
		t.Errorf("%d queries", n)
	}
}

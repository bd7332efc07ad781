package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/report"
)

const repository = "../.."

func TestPagesAreCurrent(t *testing.T) {
	if err := run(repository, true); err != nil {
		t.Error(err)
	}
}

func TestAStalePageIsNamed(t *testing.T) {
	root := t.TempDir()
	types := filepath.Join("api", "resource", "v1beta1")
	for _, dir := range []string{types, filepath.Join("docs", "reference")} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	source, err := os.ReadFile(filepath.Join(repository, types, "types.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, types, "types.go"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(root, false); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err != nil {
		t.Errorf("pages just written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "docs", "reference", "events.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err == nil || !strings.Contains(err.Error(), "events.md") || strings.Contains(err.Error(), "flags.md") {
		t.Errorf("error %v, want one about events.md alone", err)
	}
}

func TestPagesNameEverything(t *testing.T) {
	attributes := attributesPage()
	for _, a := range device.Attributes() {
		if !strings.Contains(attributes, "## "+a.Name+"\n") || !strings.Contains(attributes, a.Expression) {
			t.Errorf("attribute %s is not on its page", a.Name)
		}
	}
	events := eventsPage()
	for _, d := range report.Descriptions() {
		if !strings.Contains(events, "`"+string(d.Reason)+"`") {
			t.Errorf("reason %s is not on its page", d.Reason)
		}
	}
	config, err := configPage(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## GpuConfig", "## MigDeviceConfig", "`defaultActiveThreadPercentage`", "`interval`"} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s on the page of configurations", want)
		}
	}
	metrics, err := metricsPage()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gpu_dra_call_duration_seconds", "gpu_dra_prepared_claims", "`operation`, `reason`"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s on the page of metrics", want)
		}
	}
	if flags := flagsPage(); !strings.Contains(flags, "`--node-name` | `NODE_NAME`") {
		t.Error("no --node-name on the page of flags")
	}
}

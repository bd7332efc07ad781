package measure_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/bench/measure"
)

// workDir is a directory with a path short enough for sockets below it.
func workDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The real plugin is measured, as little as possible of each kind, with the small API server.
func TestRun(t *testing.T) {
	source, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	var report, progress bytes.Buffer
	err = measure.Run(t.Context(), measure.Options{
		Source: source, Bin: t.TempDir(), Dir: workDir(t), Rounds: 1, PerRound: 2,
		Only: map[string]bool{"prepare": true, "presets": true}, Report: &report, Progress: &progress,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, want := range []string{"API server: test/kubeapi", "| 256 ", "state/claims/UID.json", "| hgx-h100-16 ", "domain, one of each taken"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, report.String())
		}
	}
	if !strings.Contains(progress.String(), "the programs of a real API server are missing") {
		t.Errorf("it is not said that the API server is not a real one:\n%s", progress.String())
	}
}

func TestRunWithoutSource(t *testing.T) {
	var report, progress bytes.Buffer
	err := measure.Run(t.Context(), measure.Options{Source: t.TempDir(), Bin: t.TempDir(), Dir: t.TempDir(), Rounds: 1, PerRound: 1, Report: &report, Progress: &progress})
	if err == nil || !strings.Contains(err.Error(), "build the plugin") {
		t.Errorf("%v, want an error of the build", err)
	}
}

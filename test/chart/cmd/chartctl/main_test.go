package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const chartDir = "../../../../deployments/helm/gpu-dra-driver"

// run gives what the command prints and its error.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestTemplate(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("sliceVocabulary: minimal\nlogVerbosity: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "template", "gpus", chartDir, "-n", "gpu-system", "-f", values, "--set", "logVerbosity=5", "--kube-version", "1.35.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`namespace: "gpu-system"`, "--slice-vocabulary=minimal", "-v=5", `name: "gpus-gpu-dra-driver-kubelet-plugin"`} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "allowMultipleAllocations") {
		t.Error("rendered for a newer Kubernetes than was asked for")
	}
}

func TestPackage(t *testing.T) {
	to := t.TempDir()
	out, err := run(t, "package", chartDir, "-d", to, "--version", "1.2.3", "--app-version", "1.2.4")
	want := filepath.Join(to, "gpu-dra-driver-1.2.3.tgz")
	if err != nil || strings.TrimSpace(out) != want {
		t.Fatalf("printed %q, %v; want %s", out, err, want)
	}
	if rendered, err := run(t, "template", "gpus", want); err != nil || !strings.Contains(rendered, ":v1.2.4") {
		t.Errorf("the package does not render: %v", err)
	}
}

func TestDocs(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(chartDir)); err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(dir, "README.md")
	before, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	stale := bytes.Replace(before, []byte("| `rescanInterval` |"), []byte("| `rescanIntervall` |"), 1)
	if err := os.WriteFile(readme, stale, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "docs", dir); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(readme)
	if err != nil || !bytes.Equal(before, after) || bytes.Equal(before, stale) {
		t.Errorf("the table was not made anew: %v", err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	empty := t.TempDir()
	tests := map[string]struct {
		args []string
		want string
	}{
		"no chart":            {[]string{"template", "gpus"}, "accepts 2 arg(s)"},
		"a chart not there":   {[]string{"template", "gpus", "nowhere"}, "nowhere"},
		"a value not there":   {[]string{"template", "gpus", chartDir, "--set", "x=1"}, "'x' not allowed"},
		"no Kubernetes":       {[]string{"template", "gpus", chartDir, "--kube-version", "old"}, `"old"`},
		"nothing to pack":     {[]string{"package", empty}, "Chart.yaml"},
		"nothing to document": {[]string{"docs", empty}, "values.yaml"},
		"no such command":     {[]string{"rollback"}, "rollback"},
		"no kubeconfig":       {[]string{"install", "gpus", chartDir, "--kubeconfig", filepath.Join(empty, "none")}, "none"},
		"no cluster":          {[]string{"uninstall", "gpus", "--kubeconfig", filepath.Join(empty, "none")}, "none"},
		"nothing to upgrade":  {[]string{"upgrade", "gpus", chartDir, "--kubeconfig", filepath.Join(empty, "none")}, "none"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v: %v, want an error that says %q\n%s", tt.args, err, tt.want, out)
			}
		})
	}
}

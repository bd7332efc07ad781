package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// run executes the command with arguments and gives what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	// Logging can be set up once in a process.
	if err := logsapi.ResetForTest(nil); err != nil {
		t.Fatal(err)
	}
	cmd := command("v1.2.3")
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestVersionAndHelp(t *testing.T) {
	if out, err := run(t, "--version"); err != nil || !strings.Contains(out, "v1.2.3") {
		t.Errorf("%q, %v", out, err)
	}
	out, err := run(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--node-name", "--driver-root-mount", "--kubelet-plugins-dir", "--logging-format", "-v, --v"} {
		if !strings.Contains(out, flag) {
			t.Errorf("the help does not tell of %s", flag)
		}
	}
}

// A wrong setting is an error that names it, from wherever it came; no usage text hides it.
func TestWrongSettings(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		env  map[string]string
		word string
	}{
		"no node":          {nil, nil, "--node-name"},
		"unknown flag":     {[]string{"--nodename=x"}, nil, "nodename"},
		"an argument":      {[]string{"x"}, nil, "x"},
		"wrong variable":   {[]string{"--node-name=n"}, map[string]string{"HOLDER_WAIT": "long"}, "HOLDER_WAIT"},
		"value of a flag":  {[]string{"--node-name=n", "--rescan-interval=1ms"}, nil, "--rescan-interval"},
		"of a variable":    {nil, map[string]string{"NODE_NAME": "Not_A_Name"}, "Not_A_Name"},
		"unknown log form": {[]string{"--node-name=n", "--logging-format=xml"}, nil, "xml"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range row.env {
				t.Setenv(k, v)
			}
			out, err := run(t, row.args...)
			if err == nil || !strings.Contains(err.Error(), row.word) {
				t.Errorf("%v", err)
			}
			if strings.Contains(out, "Usage:") {
				t.Errorf("printed: %s", out)
			}
		})
	}
}

// The check before an uninstall asks an API server, for as long as it was told to at most.
func TestCheckUninstallWithoutAnAPIServer(t *testing.T) {
	if _, err := run(t, "check-uninstall", "--kubeconfig=/does/not/exist"); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("%v", err)
	}
	config := filepath.Join(t.TempDir(), "config")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "check-uninstall", "--kubeconfig="+config, "--timeout=1ms"); err == nil || !strings.Contains(err.Error(), "--no-hooks") {
		t.Errorf("%v", err)
	}
	if out, err := run(t, "check-uninstall", "--kubeconfig="+config, "--timeout=1ms", "--warn-only"); err != nil || !strings.Contains(out, "warning: it is not known") {
		t.Errorf("%q, %v", out, err)
	}
}

// The commands about MIG layouts say what they lack, and do not wait for a GPU driver.
func TestLayoutCommands(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "layouts.yaml")
	if err := os.WriteFile(file, []byte("version: v2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(root, "good.yaml")
	if err := os.WriteFile(good, []byte("version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := []string{"--driver-root-mount=" + root, "--sys-root-mount=" + root, "--proc-root-mount=" + root, "--kubelet-plugins-dir=" + root}
	for name, row := range map[string]struct {
		args []string
		env  map[string]string
		word string
	}{
		"no deed":         {[]string{"mig-layout"}, nil, "assert or export"},
		"no file":         {[]string{"mig-layout", "assert", "--mig-layout=off"}, nil, "MIG_LAYOUT_FILE"},
		"no name":         {[]string{"mig-layout", "assert", "--mig-layout-file=" + good}, nil, "MIG_LAYOUT"},
		"missing file":    {[]string{"mig-layout", "assert", "--mig-layout=off", "--mig-layout-file=/does/not/exist"}, nil, "/does/not/exist"},
		"wrong file":      {[]string{"mig-layout", "assert", "--mig-layout=off"}, map[string]string{"MIG_LAYOUT_FILE": file}, `version "v2"`},
		"no GPU driver":   {append([]string{"mig-layout", "assert", "--mig-layout=off", "--mig-layout-file=" + good}, nowhere...), nil, "no GPU driver answers"},
		"nothing to tell": {append([]string{"mig-layout", "export"}, nowhere...), nil, "no GPU driver answers"},
		"an argument":     {[]string{"mig-layout", "export", "x"}, nil, "x"},
		"wrong selection": {append([]string{"mig-layout", "export", "--exclude-gpus={"}, nowhere...), nil, "--exclude-gpus"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range row.env {
				t.Setenv(k, v)
			}
			out, err := run(t, row.args...)
			if err == nil || !strings.Contains(err.Error(), row.word) || out != "" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
}

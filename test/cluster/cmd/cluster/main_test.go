package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/cluster"
)

// run runs the command in a state folder of the test's own.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv("CLUSTER_STATE_ROOT", "/tmp/kc-none")
	t.Setenv("CLUSTER_BIN", "/tmp/kc-none/bin")
	var out, errs bytes.Buffer
	cmd := command(&out, &errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func TestEnv(t *testing.T) {
	t.Setenv("CLUSTER_NAME", "fromenv")
	out, _, err := run(t, "env")
	if err != nil || !strings.Contains(out, "export KUBECONFIG='/tmp/kc-none/fromenv/pki/admin.kubeconfig'\n") {
		t.Errorf("got %q, %v", out, err)
	}
	out, _, err = run(t, "env", "--name", "flag")
	if err != nil || !strings.Contains(out, "/tmp/kc-none/flag/pki/") {
		t.Errorf("a flag does not beat the environment: %q, %v", out, err)
	}
	// A shell takes the output as it is.
	got, err := exec.CommandContext(t.Context(), "sh", "-ec", out+`echo "$CLUSTER_NAME"; echo "$PATH" | cut -d: -f1`).CombinedOutput()
	if err != nil || string(got) != "flag\n/tmp/kc-none/bin\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFaultsAreReported(t *testing.T) {
	tests := map[string]struct {
		args []string
		want error
	}{
		"name":     {[]string{"status", "--name", "Too_Long_Name"}, cluster.ErrConfig},
		"bind":     {[]string{"status", "--bind", "x"}, cluster.ErrConfig},
		"not up":   {[]string{"exec", "--", "true"}, cluster.ErrNotUp},
		"no node":  {[]string{"node-exec", "0", "--", "true"}, cluster.ErrNotUp},
		"unbuilt":  {[]string{"up"}, cluster.ErrMissing},
		"node 99":  {[]string{"add-node", "99"}, cluster.ErrConfig},
		"node two": {[]string{"add-node", "two"}, nil},
		"signal":   {[]string{"stop", "etcd", "NOSUCH"}, nil},
		"no log":   {[]string{"logs", "etcd"}, nil},
		"args":     {[]string{"load"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, tc.args...)
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestBadEnvironmentIsReported(t *testing.T) {
	t.Setenv("CLUSTER_NODES", "x")
	if _, _, err := run(t, "status"); !errors.Is(err, cluster.ErrConfig) {
		t.Errorf("got %v", err)
	}
}

func TestStatusAndDownOfNothing(t *testing.T) {
	out, _, err := run(t, "status")
	if err != nil || !strings.HasPrefix(out, "COMPONENT") {
		t.Errorf("status: %q, %v", out, err)
	}
	if _, said, err := run(t, "down"); err != nil || !strings.Contains(said, "nothing to take down") {
		t.Errorf("down: %q, %v", said, err)
	}
	if out, _, err := run(t, "logs"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("logs: %q, %v", out, err)
	}
}

func TestForegroundPassesTheExitCode(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, err: &out}
	err := a.foreground(exec.CommandContext(t.Context(), "sh", "-c", "echo hello; exit 7"))
	var exit exitError
	if !errors.As(err, &exit) || exit.code != 7 || out.String() != "hello\n" {
		t.Errorf("got %v, output %q", err, out.String())
	}
}

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
)

// state is what a runtime tells of the container whose process proc has.
const state = `{"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 17, "bundle": "/b"}`

func proc(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "17"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "17", "cgroup"), []byte("0::/pods/one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestRun(t *testing.T) {
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	came := make(chan hook.Request, 2)
	go func() {
		for _, refusal := range []string{"", "it is another's"} {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r, _ := hook.Read[hook.Request](conn)
			came <- r
			_ = hook.Write(conn, hook.Response{Version: 1, Error: refusal})
			_ = conn.Close()
		}
	}()
	args := []string{"--socket=" + socket, "--proc-root=" + proc(t), "--claim=uid", "--device=gpu-0", "--share=id"}
	if err := run(args, strings.NewReader(state), os.Stdout); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(hook.Request{Version: 1, Claim: "uid", Device: "gpu-0", Share: "id", Cgroup: "/pods/one"}, <-came); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if err := run(args, strings.NewReader(state), os.Stdout); err == nil || err.Error() != "it is another's" {
		t.Errorf("error %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		state string
		says  string
	}{
		"an unknown flag": {[]string{"--nonsense"}, state, "nonsense"},
		"no socket":       {nil, state, "--socket"},
		"no state":        {[]string{"--socket=/s"}, "", "state from the runtime"},
		"no process":      {[]string{"--socket=/s", "--proc-root=" + t.TempDir()}, state, "cgroup"},
		"nobody there":    {[]string{"--socket=" + filepath.Join(t.TempDir(), "s"), "--proc-root=" + proc(t), "--patience=1ms"}, state, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(tt.args, strings.NewReader(tt.state), os.Stdout); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q in it", err, tt.says)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"--version"}, strings.NewReader(""), &out); err != nil || out.String() != version+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

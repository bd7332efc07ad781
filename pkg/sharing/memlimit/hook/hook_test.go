package hook_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
)

// proc is a /proc with one process that is in these cgroups.
func proc(t testing.TB, pid, cgroups string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, pid), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, pid, "cgroup"), []byte(cgroups), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestCgroup(t *testing.T) {
	for name, tt := range map[string]struct{ cgroups, want, says string }{
		"systemd":     {"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n", "/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope", ""},
		"hybrid":      {"4:memory:/other\n1:name=systemd:/x\n0::/kubepods/pod1/1\n", "/kubepods/pod1/1", ""},
		"no newline":  {"0::/a", "/a", ""},
		"the root":    {"4:memory:/kubepods/1\n0::/\n", "", "need a node with cgroup v2"},
		"version 1":   {"4:memory:/kubepods/1\n", "", "need a node with cgroup v2"},
		"outside":     {"0::/../../1\n", "", `"/../../1" is not allowed`},
		"not clean":   {"0::/a/../b\n", "", "is not allowed"},
		"not a path":  {"0::a\n", "", `"a" is not allowed`},
		"of one that": {"0::/a (deleted)\n", "/a (deleted)", ""}, // there is no such directory, which the plugin says
	} {
		t.Run(name, func(t *testing.T) {
			have, err := hook.Cgroup(strings.NewReader(`{"ociVersion":"1.2.0","id":"c","pid":17,"bundle":"/b"}`), proc(t, "17", tt.cgroups))
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v, want %q in it", err, tt.says)
				}
				return
			}
			if have != tt.want || err != nil {
				t.Errorf("%q, %v; want %q", have, err, tt.want)
			}
		})
	}
}

func TestCgroupOfNoContainer(t *testing.T) {
	root := proc(t, "17", "0::/a\n")
	for told, says := range map[string]string{
		`{"pid":18}`: "find the container's cgroup",
		`{"pid":0}`:  "names no process",
		`{"pid":-1}`: "names no process",
		`{}`:         "names no process",
		`pid 17`:     "the container's state from the runtime",
		``:           "the container's state from the runtime",
	} {
		if _, err := hook.Cgroup(strings.NewReader(told), root); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q in it", told, err, says)
		}
	}
}

func TestValidate(t *testing.T) {
	good := hook.Request{Version: hook.Version, Claim: "c", Device: "d", Share: "s", Cgroup: "/a/b"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*hook.Request){
		"version: 0": func(r *hook.Request) { r.Version = 0 },
		"version: 2": func(r *hook.Request) { r.Version = hook.Version + 1 },
		"claim":      func(r *hook.Request) { r.Claim = "" },
		"device":     func(r *hook.Request) { r.Device = "" },
		"share":      func(r *hook.Request) { r.Share = "" },
		"cgroup":     func(r *hook.Request) { r.Cgroup = "a" },
		"cgroup v2":  func(r *hook.Request) { r.Cgroup = "/" },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// serve answers one request after another with the answers, and gives what came.
func serve(t *testing.T, socket string, answers ...func(net.Conn)) <-chan hook.Request {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	came := make(chan hook.Request, len(answers))
	go func() {
		for _, answer := range answers {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := hook.Read[hook.Request](conn); err == nil {
				came <- r
			}
			answer(conn)
			_ = conn.Close()
		}
	}()
	return came
}

func saying(r hook.Response) func(net.Conn) { return func(c net.Conn) { _ = hook.Write(c, r) } }

// short is a directory whose path fits a socket.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A plugin that ends in the middle is asked again; its refusal is final.
func TestAsk(t *testing.T) {
	socket := filepath.Join(short(t), "s")
	asked := hook.Request{Claim: "c", Device: "d", Share: "s", Cgroup: "/a"}
	came := serve(t, socket, func(net.Conn) {}, saying(hook.Response{Version: 1}), saying(hook.Response{Version: 1, Error: "no"}))
	if err := hook.Ask(t.Context(), socket, asked); err != nil {
		t.Error(err)
	}
	want := asked
	want.Version = hook.Version
	for range 2 {
		if diff := cmp.Diff(want, <-came); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
	var refused *hook.RefusedError
	if err := hook.Ask(t.Context(), socket, asked); !errors.As(err, &refused) || refused.Error() != "no" {
		t.Errorf("error %v", err)
	}
}

func TestAskNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	socket := filepath.Join(short(t), "s")
	if err := hook.Ask(ctx, socket, hook.Request{}); err == nil || !strings.Contains(err.Error(), socket) || !strings.Contains(err.Error(), "pod runs on this node") {
		t.Errorf("error %v", err)
	}
}

func TestReadTooMuch(t *testing.T) {
	for _, text := range []string{"", "{}", strings.Repeat(" ", 2<<20) + "{}\n", "x\n"} {
		if _, err := hook.Read[hook.Response](strings.NewReader(text)); err == nil {
			t.Errorf("%.10q… is read", text)
		}
	}
}

// Whatever comes is an error or a message that survives being written.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"claim":"c","device":"d","share":"s","cgroup":"/a"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := hook.Read[hook.Request](bytes.NewReader(data))
		if err != nil || r.Validate() != nil {
			return
		}
		var out bytes.Buffer
		if err := hook.Write(&out, r); err != nil {
			return // text that is no UTF-8
		}
		if again, err := hook.Read[hook.Request](&out); err != nil || again != r {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}

// Whatever a process's file says: a path that can be a container's, or an error.
func FuzzCgroup(f *testing.F) {
	f.Add("4:memory:/x\n0::/kubepods/1\n", `{"pid":1}`)
	f.Fuzz(func(t *testing.T, file, told string) {
		cgroup, err := hook.Cgroup(strings.NewReader(told), proc(t, "1", file))
		if err == nil && (hook.CheckCgroup(cgroup) != nil || !filepath.IsLocal(strings.TrimPrefix(cgroup, "/"))) {
			t.Errorf("%q in %q", cgroup, file)
		}
	})
}

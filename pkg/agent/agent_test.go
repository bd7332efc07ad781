package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/loopback"
)

// settings are those of a node without a GPU driver, all below one short directory.
func settings(t *testing.T, api *kubeapi.Server) *config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "a") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := config.Default()
	c.NodeName, c.PodUID = "node-1", "11111111-2222-3333-4444-555555555555"
	c.Kubeconfig = filepath.Join(dir, "kubeconfig")
	root := config.Root{Host: filepath.Join(dir, "root"), Container: filepath.Join(dir, "root")}
	c.DriverRoot, c.DevRoot = root, root
	c.ProcRoot, c.SysRoot = filepath.Join(dir, "proc"), filepath.Join(dir, "sys")
	c.KubeletPluginsDir, c.KubeletRegistryDir = filepath.Join(dir, "p"), filepath.Join(dir, "r")
	c.CDIDir, c.CDIHook = filepath.Join(dir, "cdi"), filepath.Join(dir, "hook")
	c.HTTPAddress, c.HealthAddress = loopback.Address(8080), ""
	for _, d := range []string{root.Host, c.ProcRoot, c.SysRoot, c.KubeletRegistryDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, c.CDIHook, []byte("hook"), 0o755)
	if err := api.WriteKubeconfig(c.Kubeconfig, "plugin"); err != nil {
		t.Fatal(err)
	}
	return c
}

func startAPI(t *testing.T) *kubeapi.Server {
	t.Helper()
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	if err := api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid"}}); err != nil {
		t.Fatal(err)
	}
	return api
}

func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// The whole life on a node without a GPU driver: ready with an empty pool and a note, calls are
// answered, and after the end nothing is left.
func TestRunWithoutAGPUDriver(t *testing.T) {
	api := startAPI(t)
	c := settings(t, api)
	client, err := api.Client("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubelet.Start(t.Context(), kubelet.Options{NodeName: c.NodeName, RegistryDir: c.KubeletRegistryDir, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Stop()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, c, "v1") }()

	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := k.WaitForDriver(limit, c.DriverName); err != nil {
		t.Fatal(err)
	}
	code, body := 0, ""
	for code != http.StatusOK && limit.Err() == nil {
		code, body = get(t, c.HTTPAddress, "/readyz")
	}
	if code != http.StatusOK || !strings.Contains(body, "[!] GPU driver: ") {
		t.Errorf("/readyz: %d, %s", code, body)
	}
	if code, body := get(t, c.HTTPAddress, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d, %s", code, body)
	}
	if _, body := get(t, c.HTTPAddress, "/metrics"); !strings.Contains(body, `gpu_dra_build_info{version="v1"} 1`) {
		t.Errorf("/metrics: %s", body)
	}
	claim := kubelet.Claim{Namespace: "default", Name: "gone", UID: "99999999-0000-0000-0000-000000000000"}
	if errs, err := k.Unprepare(limit, c.DriverName, claim); err != nil || errs[claim.UID] != nil {
		t.Errorf("unprepare: %v, %v", errs, err)
	}
	if _, err := k.Prepare(limit, c.DriverName, claim); err == nil {
		t.Error("a claim that is not there was prepared")
	}
	if _, body := get(t, c.HTTPAddress, "/metrics"); !strings.Contains(body, `gpu_dra_call_failures_total{operation="prepare",reason="api"} 1`) {
		t.Errorf("a claim that the API server does not have is not counted: %s", body)
	}
	list, err := client.ResourceV1().ResourceSlices().List(limit, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Spec.Devices) != 0 {
		t.Errorf("slices: %+v, %v", list.Items, err)
	}

	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	if left, err := os.ReadDir(c.KubeletRegistryDir); err != nil || len(left) > 0 {
		t.Errorf("left in the registry: %v, %v", left, err)
	}
	if left, err := os.ReadDir(c.CDIDir); err != nil || len(left) > 0 {
		t.Errorf("left in the CDI directory: %v, %v", left, err)
	}
}

// What cannot start says why, by the flag.
func TestRunRefuses(t *testing.T) {
	api := startAPI(t)
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil, 0o600)
	for flag, change := range map[string]func(*config.Config){
		"--node-name":           func(c *config.Config) { c.NodeName = "" },
		"kubeconfig":            func(c *config.Config) { c.Kubeconfig = file + ".none" },
		"--http-address":        func(c *config.Config) { c.HTTPAddress = taken.Addr().String() },
		"--grpc-health-address": func(c *config.Config) { c.HTTPAddress, c.HealthAddress = "", taken.Addr().String() },
		"--cdi-hook":            func(c *config.Config) { c.CDIHook = file + ".none" },
		"--cdi-dir":             func(c *config.Config) { c.CDIDir = file },
		"--kubelet-plugins-dir": func(c *config.Config) { c.KubeletPluginsDir = file },
	} {
		t.Run(flag, func(t *testing.T) {
			c := settings(t, api)
			change(c)
			if err := Run(t.Context(), c, "v1"); err == nil || !strings.Contains(err.Error(), flag) {
				t.Errorf("%v", err)
			}
		})
	}
}

// The kubelet's own words say why a plugin is not registered.
func TestRegistrationSaysWhatTheKubeletSaid(t *testing.T) {
	a := &Agent{config: config.Default(), metrics: metrics.New("v1")}
	a.calls = &kubeletplugin.Calls{Registered: a.onRegistered}
	check := a.checks().Ready[0]
	notify := func(status *registerapi.RegistrationStatus) {
		_, _ = a.calls.Intercept(t.Context(), status,
			&grpc.UnaryServerInfo{FullMethod: "/pluginregistration.Registration/NotifyRegistrationStatus"},
			func(context.Context, any) (any, error) { return nil, nil })
	}
	refused := &registerapi.RegistrationStatus{Error: "the node is too old"}
	accepted := &registerapi.RegistrationStatus{PluginRegistered: true}
	for _, step := range []struct {
		status *registerapi.RegistrationStatus
		want   string
	}{
		{nil, "see that it watches " + a.config.KubeletRegistryDir},
		{refused, "refused this plugin: the node is too old"},
		{accepted, ""},
		{refused, "the node is too old"}, // by a kubelet that was started anew
	} {
		if step.status != nil {
			notify(step.status)
		}
		err := check.Ask(t.Context())
		if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("after %v: %v, want %q", step.status, err, step.want)
		}
	}
	if a.registered.Load() {
		t.Error("registered, after a refusal")
	}
}

// A socket that nobody serves fails the liveness, but only once the plugin serves.
func TestOwnSocket(t *testing.T) {
	a := &Agent{config: config.Default()}
	a.config.KubeletPluginsDir = t.TempDir()
	if err := a.callOwnSocket(t.Context()); err != nil {
		t.Errorf("while it starts: %v", err)
	}
	a.serving.Store(true)
	if err := a.callOwnSocket(t.Context()); err == nil || !strings.Contains(err.Error(), a.socket()) {
		t.Errorf("without a server: %v", err)
	}
}

func write(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}

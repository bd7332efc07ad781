package process_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gpu-dra/driver/test/process"
)

func TestProbesAndMetrics(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start()
	p.WaitReady()
	code, body, err := p.Get("/readyz")
	if want := "[+] kubelet registration\n[+] ResourceSlices\n[+] sole owner of the GPUs\n"; err != nil || code != http.StatusOK || body != want {
		t.Errorf("/readyz: %d, %q, %v", code, body, err)
	}
	claim := b.Allocated("claim", []int{0})
	prepare(t, b, claim, 0)
	for _, line := range []string{
		`gpu_dra_call_duration_seconds_count{operation="prepare",result="success"} 1`,
		`gpu_dra_call_duration_seconds_count{operation="unprepare",result="success"} 0`,
		`gpu_dra_call_failures_total{operation="prepare",reason="held"} 0`,
		`gpu_dra_devices{type="gpu"} 8`, `gpu_dra_gpu_driver_up 1`, `gpu_dra_kubelet_registered 1`,
		`gpu_dra_publishing 1`, `gpu_dra_unusable_gpus 0`, `gpu_dra_prepared_claims 1`,
		`gpu_dra_publish_duration_seconds_count{result="success"} 1`,
	} {
		metric(t, b, p, line)
	}
	unprepare(t, b, claim)
	metric(t, b, p, `gpu_dra_prepared_claims 0`)
	health(t, p)
}

// health asks the standard gRPC health service.
func health(t *testing.T, p *process.Plugin) {
	conn, err := grpc.NewClient(p.Health, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	client := healthpb.NewHealthClient(conn)
	for _, service := range []string{"", "liveness", "readiness"} {
		answer, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("service %q: %v, %v", service, answer, err)
		}
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
}

// A plugin that nobody registers is live, not ready, and says what is missing.
func TestNotRegistered(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Kubelet.Stop()
	p := b.Run()
	b.Eventually("/readyz", func() error {
		_, _, err := p.Get("/readyz")
		return err
	})
	code, body, err := p.Get("/readyz")
	if err != nil || code != http.StatusServiceUnavailable || len(lines(body, "[-] kubelet registration: ")) != 1 {
		t.Errorf("/readyz: %d, %q, %v", code, body, err)
	}
	if code, body, err := p.Get("/healthz"); err != nil || code != http.StatusOK {
		t.Errorf("/healthz: %d, %q, %v", code, body, err)
	}
	b.StartKubelet(nil)
	p.WaitReady()
}

// Wrong settings end the process at once with a message that names them.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	for flag, value := range map[string]string{
		"node-name": "Not A Name", "cdi-hook": "/nonexistent/hook", "http-address": "nowhere", "kubeconfig": "/nonexistent/config",
		"slice-vocabulary": "some", "holder-wait": "1h", "kubelet-plugins-dir": "/" + strings.Repeat("long/", 20),
	} {
		p := b.Run(process.Flag(flag, value))
		if err := p.WaitExit(); err == nil || strings.Contains(err.Error(), "still runs") {
			t.Errorf("--%s=%s: %v", flag, value, err)
		}
		if !strings.Contains(p.Log(), flag) && !strings.Contains(p.Log(), value) {
			t.Errorf("--%s=%s: the message names neither: %s", flag, value, p.Log())
		}
	}
}

// An end with nothing prepared leaves nothing behind; with a claim the state stays.
func TestNothingStaysBehind(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start()
	p.WaitReady()
	claim := b.Allocated("claim", []int{0})
	prepare(t, b, claim, 0)
	p.Terminate()
	if !b.Record(claim.UID) {
		t.Error("the record of a prepared claim went with the process")
	}
	p = b.Start()
	prepare(t, b, claim, 0)
	unprepare(t, b, claim)
	p.Terminate()
	for _, dir := range b.StateDirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) || len(entries) > 0 {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
}

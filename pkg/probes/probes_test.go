package probes

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gpu-dra/driver/pkg/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func good(string) Check { return Check{"good", func(context.Context) error { return nil }} }

func bad(name, why string) Check {
	return Check{name, func(context.Context) error { return errors.New(why) }}
}

func TestHTTPAnswers(t *testing.T) {
	checks := Checks{
		Live:  []Check{good("")},
		Ready: []Check{good(""), bad("slices", "not accepted")},
		Notes: []Check{bad("GPU driver", "no library")},
	}
	tests := map[string]struct {
		code int
		body []string
	}{
		"/healthz": {200, []string{"[+] good"}},
		"/readyz":  {503, []string{"[+] good", "[-] slices: not accepted", "[!] GPU driver: no library"}},
		"/metrics": {200, []string{"gpu_dra_build_info"}},
		"/other":   {404, nil},
	}
	handler := Handler(metrics.New("v1").Registry(), checks)
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if w.Code != want.code {
				t.Errorf("status %d, want %d", w.Code, want.code)
			}
			for _, line := range want.body {
				if !strings.Contains(w.Body.String(), line) {
					t.Errorf("no %q in:\n%s", line, w.Body)
				}
			}
		})
	}
}

func TestANoteDoesNotMakeUnready(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(metrics.New("v1").Registry(), Checks{Notes: []Check{bad("GPU driver", "absent")}}).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "absent") {
		t.Errorf("status %d, body %q", w.Code, w.Body)
	}
}

func TestServersServeAndEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	checks := Checks{Live: []Check{good("")}, Ready: []Check{bad("x", "y")}}
	web, rpc := listen(t), listen(t)
	ended := make(chan error, 2)
	go func() { ended <- ServeHTTP(ctx, web, Handler(metrics.New("v1").Registry(), checks)) }()
	go func() { ended <- ServeGRPC(ctx, rpc, NewHealth(checks)) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web.Addr().String()+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", response.Status)
	}

	conn, err := grpc.NewClient(rpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	health := healthpb.NewHealthClient(conn)
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "liveness": healthpb.HealthCheckResponse_SERVING,
		"readiness": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		got, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != want {
			t.Errorf("service %q: %v %v, want %v", service, got.GetStatus(), err, want)
		}
	}
	if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service gives %v", err)
	}
	cancel()
	for range 2 {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a server does not end")
		}
	}
}

func TestWithoutAListenerNothingIsServed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(ServeHTTP(ctx, nil, nil), ServeGRPC(ctx, nil, nil)); err != nil {
		t.Error(err)
	}
}

func TestAListenerThatBreaksIsAnError(t *testing.T) {
	web, rpc := listen(t), listen(t)
	_, _ = web.Close(), rpc.Close()
	if err := ServeHTTP(t.Context(), web, nil); err == nil {
		t.Error("HTTP on a closed listener ends without an error")
	}
	if err := ServeGRPC(t.Context(), rpc, NewHealth(Checks{})); err == nil {
		t.Error("gRPC on a closed listener ends without an error")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A socket takes the place of one that a killed process left, serves its group, and goes at the end.
func TestASocketServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ServeSocket(ctx, path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	answer := ""
	for answer == "" {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://local/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			// It does not listen yet.
			runtime.Gosched()
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		answer = string(body)
	}
	cancel()
	<-ended
	if answer != "here" {
		t.Errorf("answer %q", answer)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	// What cannot be is no reason to wait, or to end anything.
	ServeSocket(t.Context(), filepath.Join(path, "no", "such", "directory"), http.NotFoundHandler())
}

// stuck is a collector that answers when it is let go, and has one metric that cannot be had.
type stuck struct{ came, letGo chan struct{} }

func (s stuck) Describe(chan<- *prometheus.Desc) {}

func (s stuck) Collect(out chan<- prometheus.Metric) {
	s.came <- struct{}{}
	<-s.letGo
	out <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "", nil, nil), errors.New("broken"))
}

// A metric that cannot be had takes no other with it, and scrapes that wait do not pile up.
func TestScrapesInTrouble(t *testing.T) {
	registry := metrics.New("v1").Registry()
	s := stuck{came: make(chan struct{}), letGo: make(chan struct{})}
	registry.MustRegister(s)
	handler := Handler(registry, Checks{})
	scrape := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return w
	}
	answers := make(chan *httptest.ResponseRecorder, maxScrapes)
	for range maxScrapes {
		go func() { answers <- scrape() }()
		<-s.came
	}
	if w := scrape(); w.Code != http.StatusServiceUnavailable {
		t.Errorf("one more is answered with %d", w.Code)
	}
	close(s.letGo)
	for range maxScrapes {
		if w := <-answers; w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "gpu_dra_build_info") {
			t.Errorf("status %d, body:\n%.300s", w.Code, w.Body)
		}
	}
}

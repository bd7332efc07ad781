// Package probes answers those who ask how the plugin is: Prometheus, the kubelet's probes and
// people with curl. It serves metrics and checks over HTTP and the standard gRPC health service.
// It must not know what a check looks at.
package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// Check is one named question; nil means that all is well.
type Check struct {
	Name string
	Ask  func(ctx context.Context) error
}

// Checks are the questions behind the probes.
type Checks struct {
	// Live fails when only a restart can help.
	Live []Check
	// Ready fails while the node cannot yet serve claims.
	Ready []Check
	// Notes say what an admin should know though it does not stop the plugin: "no GPU driver".
	// They are printed by /readyz and never fail it.
	Notes []Check
}

// askLimit bounds one check, below the time-outs that probes usually have.
const askLimit = 4 * time.Second

// maxScrapes is how many scrapes are answered at a time: one that a disk keeps waiting does not end
// when who asked has gone.
const maxScrapes = 4

// Handler serves /metrics, /healthz and /readyz.
func Handler(registry *prometheus.Registry, checks Checks) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// A metric that cannot be had is counted, and takes no other with it.
		Registry: registry, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { answer(w, r, checks.Live, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, r, checks.Ready, checks.Notes) })
	return mux
}

// answer writes a line for each check and the status 503 if one of the deciding ones fails.
func answer(w http.ResponseWriter, r *http.Request, deciding, notes []Check) {
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	code := http.StatusOK
	var lines string
	for _, c := range deciding {
		if err := c.Ask(ctx); err != nil {
			code = http.StatusServiceUnavailable
			lines += fmt.Sprintf("[-] %s: %v\n", c.Name, err)
			continue
		}
		lines += fmt.Sprintf("[+] %s\n", c.Name)
	}
	for _, c := range notes {
		if err := c.Ask(ctx); err != nil {
			lines += fmt.Sprintf("[!] %s: %v\n", c.Name, err)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, lines)
}

// Health is the standard gRPC health service over the same checks: the services "" and
// "liveness" ask the live ones, "readiness" the ready ones.
type Health struct {
	healthpb.UnimplementedHealthServer
	checks Checks
}

// NewHealth makes the service.
func NewHealth(checks Checks) *Health { return &Health{checks: checks} }

// Check answers SERVING or NOT_SERVING, and NotFound for a service that does not exist.
func (h *Health) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	var checks []Check
	switch req.GetService() {
	case "", "liveness":
		checks = h.checks.Live
	case "readiness":
		checks = h.checks.Ready
	default:
		return nil, status.Errorf(codes.NotFound, "service %q is unknown: ask for \"\", \"liveness\" or \"readiness\"", req.GetService())
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for _, c := range checks {
		if c.Ask(ctx) != nil {
			return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
		}
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// shutdownLimit is how long requests in flight may take when serving ends.
const shutdownLimit = 2 * time.Second

// ServeHTTP serves until the context ends. A nil listener serves nothing.
func ServeHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	// The context has ended, so the grace for requests in flight needs one of its own.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	}
	return nil
}

// ServeSocket serves at the path of a unix socket until the context ends, in place of who served there
// before. Those who want that belong to its group, the process's. What goes wrong is logged: nothing
// else depends on it.
func ServeSocket(ctx context.Context, path string, handler http.Handler) {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		var listener net.Listener
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "unix", path); err == nil {
			err = errors.Join(os.Chmod(path, socketMode), ServeHTTP(ctx, listener, handler))
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Nobody is answered at the socket", "path", path)
	}
}

// socketMode lets in the owner and the group.
const socketMode = 0o660

// ServeGRPC serves the health service until the context ends. A nil listener serves nothing.
func ServeGRPC(ctx context.Context, listener net.Listener, health *Health) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve gRPC health on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	server.Stop()
	if err := <-ended; err != nil {
		return fmt.Errorf("serve gRPC health on %s: %w", listener.Addr(), err)
	}
	return nil
}

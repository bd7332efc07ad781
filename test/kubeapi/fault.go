package kubeapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Fault is something that goes wrong with the requests that Match selects. Its effects come in the order
// of the fields.
type Fault struct {
	Match Match
	// Times is how many requests are hit; 0 means all until the fault is removed.
	Times int
	// Delay holds the request that long before it goes on.
	Delay time.Duration
	// Hang holds the request until its client gives up, the fault is removed or the server closes.
	Hang bool
	// LoseAnswer carries the request out and then closes the connection without an answer.
	LoseAnswer bool
	// Drop closes the connection without an answer; nothing is carried out.
	Drop bool
	// Code answers with this HTTP status: 403, 409, 410, 422, 429, 500, 503, 504 and so on; nothing is
	// carried out. 429 and 503 come with RetryAfter.
	Code int
	// RetryAfter in whole seconds is given to the client with 429 and 503; 0 gives none.
	RetryAfter int
}

// armed is a fault in force.
type armed struct {
	Fault
	left    int // meaningful where Times is not 0
	removed chan struct{}
}

type faults struct {
	mu    sync.Mutex
	armed []*armed
}

// inject arms f and returns what disarms it; disarming twice is allowed.
func (fs *faults) inject(f Fault) func() {
	a := &armed{Fault: f, left: f.Times, removed: make(chan struct{})}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.armed = append(fs.armed, a)
	return sync.OnceFunc(func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.armed = slices.DeleteFunc(fs.armed, func(o *armed) bool { return o == a })
		close(a.removed)
	})
}

// pick returns the first fault for r and counts it; nil where there is none.
func (fs *faults) pick(r Request) *armed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, a := range fs.armed {
		if !a.Match.matches(r) || (a.Times > 0 && a.left == 0) {
			continue
		}
		a.left--
		return a
	}
	return nil
}

// wait plays the delay and the hang. It fails where the request ended meanwhile.
func (a *armed) wait(ctx context.Context) error {
	if a.Delay > 0 {
		timer := time.NewTimer(a.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-a.removed:
		case <-ctx.Done():
			return fmt.Errorf("delayed request: %w", ctx.Err())
		}
	}
	if a.Hang {
		select {
		case <-a.removed:
		case <-ctx.Done():
			return fmt.Errorf("hanging request: %w", ctx.Err())
		}
	}
	return nil
}

// err is the answer that the fault gives, nil where it lets the request pass.
func (a *armed) err(r Request) error {
	if a.Code == 0 {
		return nil
	}
	gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
	err := apierrors.NewGenericServerResponse(a.Code, r.Verb, gr, r.Name, "injected fault", a.RetryAfter, true)
	err.ErrStatus.Status = metav1.StatusFailure
	return err
}

// connKey carries a request's connection in its context, so that a fault can cut it.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// cut closes the connection below a request. The error is of no use: the peer sees the end either way.
func cut(req *http.Request) {
	if c, ok := req.Context().Value(connKey{}).(net.Conn); ok {
		_ = c.Close()
	}
}

// silent swallows an answer that shall not reach the client.
type silent struct{ header http.Header }

func (s silent) Header() http.Header         { return s.header }
func (s silent) Write(p []byte) (int, error) { return len(p), nil }
func (s silent) WriteHeader(int)             {}

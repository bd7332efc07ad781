package kubeletplugin

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
)

// The kubelet's call after it has looked at a plugin: only then is the plugin registered. The
// library's own RegistrationStatus is not synchronised, so the call is watched here.
const notifyMethod = "/pluginregistration.Registration/NotifyRegistrationStatus"

// How the full names of the calls that work on claims end, in every version of the service.
const (
	prepareMethod   = ".DRAPlugin/NodePrepareResources"
	unprepareMethod = ".DRAPlugin/NodeUnprepareResources"
)

// Calls stands before the gRPC calls of the kubelet: it lets one call at a time work on a claim,
// knows which are in flight, so that a shutdown can wait for them, and notices whether the kubelet
// has registered the plugin. The zero value serves.
type Calls struct {
	// Registered is told each time whether the kubelet took the plugin, if it is not nil. It must
	// not block.
	Registered func(taken bool)
	// Failed is told of each claim of a call that ended before the Plugin was asked, such as one
	// whose claim the library could not get from the API server; nil where nobody wants to know.
	Failed func(ctx context.Context, failure CallFailure)

	// Unpreparing is told of each claim that the kubelet wants unprepared, before the call waits
	// for its turn: whatever prepares the claim meanwhile should end. nil where nothing does.
	Unpreparing func(claim types.UID)

	turns turns

	mu sync.Mutex
	// refusal is what the kubelet said when it refused the plugin; "" when it took it since.
	refusal  string
	inFlight int
	// begun counts the claim calls so far.
	begun int
	// idle is closed when the last call in flight ends; nil while nobody waits.
	idle chan struct{}
}

// CallFailure is a claim's part in a call that failed as a whole.
type CallFailure struct {
	Operation metrics.Operation
	Claim     claims.Ref
	Reason    metrics.Reason
	Took      time.Duration
	Err       error
}

// Intercept is a gRPC server interceptor.
func (c *Calls) Intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if operation, ok := claimOperation(info.FullMethod); ok {
		return c.claimCall(ctx, operation, req, next)
	}
	response, err := next(ctx, req)
	if info.FullMethod == notifyMethod {
		c.notified(req, err)
	}
	return response, err
}

func (c *Calls) claimCall(ctx context.Context, operation metrics.Operation, req any, next grpc.UnaryHandler) (any, error) {
	c.begin()
	defer c.end()
	begun := time.Now()
	refs := claimRefs(req)
	if operation == metrics.Unprepare && c.Unpreparing != nil {
		for _, ref := range refs {
			c.Unpreparing(ref.UID)
		}
	}
	giveBack, err := c.turns.take(ctx, refs)
	if err != nil {
		c.failed(ctx, operation, refs, metrics.ReasonLock, begun, err)
		return nil, status.FromContextError(err).Err()
	}
	defer giveBack()
	response, err := next(ctx, req)
	if err != nil {
		// The Plugin puts a claim's error into the answer. What fails the call is the library,
		// which gets each claim from the API server before it asks the Plugin to prepare it.
		reason := reasonOf(err)
		if operation == metrics.Prepare {
			reason = metrics.ReasonAPI
		}
		c.failed(ctx, operation, refs, reason, begun, err)
	}
	return response, err
}

// failed tells of each claim: the kubelet gets one error for all of them.
func (c *Calls) failed(ctx context.Context, operation metrics.Operation, refs []claims.Ref, reason metrics.Reason, begun time.Time, err error) {
	if c.Failed == nil {
		return
	}
	for _, ref := range refs {
		c.Failed(ctx, CallFailure{Operation: operation, Claim: ref, Reason: reason, Took: time.Since(begun), Err: inOneLine(err)})
	}
}

// notified remembers what the kubelet made of the plugin. The library answers a refusal with an
// error of its own.
func (c *Calls) notified(req any, err error) {
	said, ok := req.(interface {
		GetPluginRegistered() bool
		GetError() string
	})
	if !ok || said.GetPluginRegistered() && err != nil {
		return
	}
	refusal := ""
	if !said.GetPluginRegistered() {
		refusal = cmp.Or(said.GetError(), "it gave no reason")
	}
	c.mu.Lock()
	c.refusal = refusal
	c.mu.Unlock()
	if c.Registered != nil {
		c.Registered(refusal == "")
	}
}

// Refusal is the kubelet's reason if it refused the plugin when it last looked at it, else "".
func (c *Calls) Refusal() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusal
}

// claimOperation tells what a call does with claims, if it does.
func claimOperation(method string) (metrics.Operation, bool) {
	switch {
	case strings.HasSuffix(method, prepareMethod):
		return metrics.Prepare, true
	case strings.HasSuffix(method, unprepareMethod):
		return metrics.Unprepare, true
	}
	return "", false
}

func (c *Calls) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight++
	c.begun++
}

func (c *Calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
	if c.inFlight == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// settle is how long no claim call may be in flight before the last one is taken to be answered:
// a call ends here before gRPC has sent its answer, and the library's stop cuts connections.
const settle = 300 * time.Millisecond

// Drain returns when no claim call is in flight and the answers are sent, or with the context's
// error. Calls that come meanwhile are served: refusing one would cost a pod the kubelet's
// back-off of a minute.
func (c *Calls) Drain(ctx context.Context) error {
	for {
		if err := c.waitIdle(ctx); err != nil {
			return err
		}
		before := c.count()
		timer := time.NewTimer(settle)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if c.count() == before {
			return nil
		}
	}
}

// count is the number of claim calls that have begun.
func (c *Calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

func (c *Calls) waitIdle(ctx context.Context) error {
	c.mu.Lock()
	if c.inFlight == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package kubeletplugin

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
// knows which are in flight, so that a shutdown can wait for them, and notices when the kubelet
// has registered the plugin.
type Calls struct {
	registered func()
	turns      turns

	mu       sync.Mutex
	inFlight int
	// begun counts the claim calls so far.
	begun int
	// idle is closed when the last call in flight ends; nil while nobody waits.
	idle chan struct{}
}

// NewCalls makes a watcher; registered is called after each registration that succeeded. It
// must not block.
func NewCalls(registered func()) *Calls { return &Calls{registered: registered} }

// Intercept is a gRPC server interceptor.
func (c *Calls) Intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if isClaimMethod(info.FullMethod) {
		c.begin()
		defer c.end()
		giveBack, err := c.turns.take(ctx, claimUIDs(req))
		if err != nil {
			return nil, status.FromContextError(err).Err()
		}
		defer giveBack()
	}
	response, err := next(ctx, req)
	if info.FullMethod == notifyMethod && err == nil && accepted(req) {
		c.registered()
	}
	return response, err
}

// accepted tells whether the kubelet's notification says that it took the plugin.
func accepted(req any) bool {
	status, ok := req.(interface{ GetPluginRegistered() bool })
	return ok && status.GetPluginRegistered()
}

func isClaimMethod(method string) bool {
	return strings.HasSuffix(method, prepareMethod) || strings.HasSuffix(method, unprepareMethod)
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

package mps

import (
	"context"
	"fmt"
	"net"
	"time"
)

// AwayError tells that the supervisor did not take a call.
type AwayError struct {
	Socket string
	Waited time.Duration
	Err    error
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("the supervisor of MPS control daemons does not answer at %s, waited %s: %v; see that the pod of the MPS DaemonSet runs on this node",
		e.Socket, e.Waited.Round(time.Millisecond), e.Err)
}

func (e *AwayError) Unwrap() error { return e.Err }

// RefusedError is what the supervisor answered instead of doing what was asked.
type RefusedError struct {
	Op   Op
	Name string
	// Message is the supervisor's. Invalid tells that trying again does not help.
	Message string
	Invalid bool
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("MPS control daemon %s, %s: %s", e.Name, e.Op, e.Message)
}

// Client speaks to the supervisor of this node. It is safe for concurrent use and keeps nothing.
type Client struct {
	Layout Layout
	// Patience is how long a call waits for a supervisor that does not listen, or that ended
	// during the call: it is being started. A call that is being served takes the time that its
	// context has.
	Patience time.Duration
}

// retry is the time between two tries to reach the supervisor.
const retry = 20 * time.Millisecond

// Ensure has a daemon running as the spec says and returns when it serves. Errors to tell apart:
// *AwayError, *RefusedError.
func (c Client) Ensure(ctx context.Context, name string, spec Spec) error {
	_, err := c.call(ctx, Request{Op: OpEnsure, Name: name, Spec: &spec})
	return err
}

// Stop ends a daemon and returns when nothing is left of it. Errors are those of Ensure.
func (c Client) Stop(ctx context.Context, name string) error {
	_, err := c.call(ctx, Request{Op: OpStop, Name: name})
	return err
}

// List tells of all daemons. Errors are those of Ensure.
func (c Client) List(ctx context.Context) ([]Status, error) {
	answer, err := c.call(ctx, Request{Op: OpList})
	return answer.Daemons, err
}

// answerTime is left of a call's time for the way of the answer.
const answerTime = 500 * time.Millisecond

// call makes a call, and again while the supervisor ends in the middle of it: every operation can
// be repeated.
func (c Client) call(ctx context.Context, r Request) (Response, error) {
	r.Version = ProtocolVersion
	start := time.Now()
	limit, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	for {
		answer, err := c.once(ctx, r)
		if err == nil && answer.Error != "" {
			return answer, &RefusedError{Op: r.Op, Name: r.Name, Message: answer.Error, Invalid: answer.Invalid}
		}
		if err == nil {
			return answer, nil
		}
		timer := time.NewTimer(retry)
		select {
		case <-timer.C:
		case <-limit.Done():
			timer.Stop()
			return Response{}, &AwayError{Socket: c.Layout.Socket(), Waited: time.Since(start), Err: err}
		}
	}
}

func (c Client) once(ctx context.Context, r Request) (Response, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Layout.Socket())
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if end, ok := ctx.Deadline(); ok {
		r.TimeoutMillis = max(1, (time.Until(end) - answerTime).Milliseconds())
	}
	if err := Write(conn, r); err != nil {
		return Response{}, err
	}
	return Read[Response](conn)
}

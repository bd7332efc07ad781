package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// requestTime is how long a client may take to send its request and to take its answer.
const requestTime = 5 * time.Second

// Listen opens the supervisor's socket, in place of one that an earlier supervisor left. Only
// root can reach it.
func Listen(ctx context.Context, layout mps.Layout) (net.Listener, error) {
	if err := os.Remove(layout.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier supervisor: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", layout.Socket())
	if err != nil {
		return nil, fmt.Errorf("open the supervisor's socket: %w", err)
	}
	if err := os.Chmod(layout.Socket(), 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Serve answers requests until the context ends, and then those that have begun.
func (s *Supervisor) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("supervisor's socket: %w", err)
		}
		calls.Go(func() {
			defer func() { _ = conn.Close() }()
			if err := s.serveOne(ctx, conn); err != nil {
				klog.FromContext(ctx).Error(err, "A request could not be served")
			}
		})
	}
}

func (s *Supervisor) serveOne(ctx context.Context, conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	request, err := mps.Read[mps.Request](conn)
	if err == nil {
		err = request.Validate()
	}
	answer := mps.Response{Version: mps.ProtocolVersion}
	if err != nil {
		answer.Error, answer.Invalid = err.Error(), true
	} else {
		// What was begun is ended also when the supervisor is told to end.
		answer.Daemons, err = s.handle(context.WithoutCancel(ctx), request, func() bool { return !hungUp(conn) })
	}
	if err != nil && answer.Error == "" {
		answer.Error = err.Error()
	}
	if err := conn.SetDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	return mps.Write(conn, answer)
}

// hungUp tells whether the other end closed the connection.
func hungUp(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true // it is closed on this side
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil || errors.Is(err, unix.ECONNRESET)
	})
	return closed || err != nil
}

// handle carries a request out. waits tells whether the caller still does.
func (s *Supervisor) handle(ctx context.Context, r mps.Request, waits func() bool) ([]mps.Status, error) {
	switch r.Op {
	case mps.OpEnsure:
		ctx, cancel := context.WithTimeout(ctx, r.Timeout(ensureLimit))
		defer cancel()
		status, err := s.ensure(ctx, r.Name, *r.Spec, waits)
		return []mps.Status{status}, err
	case mps.OpStop:
		ctx, cancel := context.WithTimeout(ctx, r.Timeout(stopLimit))
		defer cancel()
		return nil, s.Stop(ctx, r.Name)
	default:
		return s.List(), nil
	}
}

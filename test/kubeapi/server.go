package kubeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// Options of a server. The zero value serves HTTPS on a free loopback port, with a
// certificate of its own that kubeconfigs carry.
type Options struct {
	// Address to listen on, "127.0.0.1:0" by default.
	Address string
	// PlainHTTP serves without TLS (and so without HTTP/2). Clients made from a kubeconfig send no
	// token without TLS, so users are unknown and none is asked for.
	PlainHTTP bool
	// History is how many changes of each resource a watch can catch up on; 4096 by default.
	History int
	// Log is how many requests are remembered at least; 65536 by default.
	Log int
	// Now is the clock of creation times; time.Now by default.
	Now func() time.Time
}

// Server is a running API server. All methods may be called at any time from any goroutine.
type Server struct {
	store   *storage.Store
	faults  faults
	journal journal
	watches watches
	fields  storage.FieldOwners
	options Options
	version atomic.Pointer[string]
	address string
	tls     *tls.Config
	ca      []byte

	mu    sync.Mutex // guards front
	front *front     // nil while away
}

// front is one listening HTTP server: a new one is made each time the server comes back.
type front struct {
	http *http.Server
	done chan struct{}
}

// Start begins to serve.
func Start(o Options) (*Server, error) {
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	if o.History == 0 {
		o.History = 4096
	}
	if o.Log == 0 {
		o.Log = 1 << 16
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{store: storage.New(o.History, o.Now), fields: storage.NewFieldOwners(), options: o, address: o.Address, journal: journal{keep: o.Log}}
	if !o.PlainHTTP {
		var err error
		if s.tls, s.ca, err = selfSigned(o.Address, o.Now()); err != nil {
			return nil, err
		}
	}
	return s, s.Back()
}

// Back takes the server onto the network again, at the address it had; nothing happens if it is there.
func (s *Server) Back() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.front != nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.address, err)
	}
	s.address = listener.Addr().String()
	f := &front{done: make(chan struct{})}
	f.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), TLSConfig: s.tls, ConnContext: withConn, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // broken connections are what tests make
	}
	s.front = f
	go func() {
		defer close(f.done)
		// Serve ends with ErrServerClosed in Away; a listener that breaks by itself shows as an absent server.
		if s.tls != nil {
			_ = f.http.ServeTLS(listener, "", "")
			return
		}
		_ = f.http.Serve(listener)
	}()
	return nil
}

// Away takes the server off the network: it refuses connections, and those in use break. What is
// stored stays.
func (s *Server) Away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.front == nil {
		return nil
	}
	err := s.front.http.Close()
	<-s.front.done
	s.front = nil
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close server: %w", err)
	}
	return nil
}

// Close ends the server, its connections and watches.
func (s *Server) Close() error { return s.Away() }

// Inject makes requests fail and returns what ends that. See [Fault].
func (s *Server) Inject(f Fault) (remove func()) { return s.faults.inject(f) }

// DropWatches ends the running watches that m selects and tells how many, as an API server does now and
// then. Their connections stay: [Server.Away] breaks those.
func (s *Server) DropWatches(m Match) int { return s.watches.drop(m) }

// Watches tells how many watches that m selects are running.
func (s *Server) Watches(m Match) int { return s.watches.count(m) }

// Compact forgets all history, so that a watch that resumes from an older version gets 410 Expired.
func (s *Server) Compact() { s.store.Compact() }

// Requests returns the remembered requests that m selects, in the order of their answers.
func (s *Server) Requests(m Match) []Request { return s.journal.find(m) }

// ResetRequests forgets the requests so far.
func (s *Server) ResetRequests() { s.journal.reset() }

// serve answers every request.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	call, ok := parse(req)
	if !ok {
		s.discover(w, req)
		return
	}
	call.At = s.options.Now()
	answer, code, err := s.handle(w, req, call)
	if errors.Is(err, errAnswered) {
		return
	}
	if err != nil {
		answer, code = statusOf(err)
	}
	call.Code = code
	s.journal.add(call)
	// A client that has gone cannot be told anything.
	_ = respond(w, req, code, answer)
}

// errAnswered says that nothing is left to be answered: a watch has ended or the connection is cut.
var errAnswered = errors.New("answered")

// handle plays the faults around the real work.
func (s *Server) handle(w http.ResponseWriter, req *http.Request, call Request) (runtime.Object, int, error) {
	if s.tls != nil && !strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ") {
		return nil, 0, apierrors.NewUnauthorized("a bearer token is required; its value is taken as the user's name")
	}
	fault := s.faults.pick(call)
	if fault == nil {
		return s.work(w, req, call)
	}
	if err := fault.wait(req.Context()); err != nil {
		return nil, 0, s.abandon(req, call)
	}
	switch {
	case fault.LoseAnswer:
		_, code, err := s.work(silent{header: http.Header{}}, req, call)
		if err != nil && !errors.Is(err, errAnswered) {
			_, code = statusOf(err)
		}
		call.Code = code
		return nil, 0, s.abandon(req, call)
	case fault.Drop:
		return nil, 0, s.abandon(req, call)
	}
	if err := fault.err(call); err != nil {
		if fault.RetryAfter > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(fault.RetryAfter))
		}
		return nil, 0, err
	}
	return s.work(w, req, call)
}

// abandon ends a request without an answer.
func (s *Server) abandon(req *http.Request, call Request) error {
	s.journal.add(call)
	cut(req)
	return errAnswered
}

// work carries a request out.
func (s *Server) work(w http.ResponseWriter, req *http.Request, call Request) (runtime.Object, int, error) {
	r, ok := s.store.Find(call.gvr())
	if !ok || (call.Subresource != "" && (call.Subresource != "status" || !r.Status)) {
		return nil, 0, apierrors.NewGenericServerResponse(http.StatusNotFound, call.Verb, call.gvr().GroupResource(), "", "the server could not find the requested resource", 0, true)
	}
	code := http.StatusOK
	var o runtime.Object
	var err error
	switch call.Verb {
	case "get":
		o, err = s.store.Get(r, call.key())
	case "list":
		o, err = s.list(req, r, call)
	case "watch":
		if err = s.watch(w, req, r, call); err == nil {
			err = errAnswered
		}
	case "create":
		o, err = s.create(w, req, r, call)
		code = http.StatusCreated
	case "update":
		o, err = s.update(w, req, r, call)
	case "patch":
		o, err = s.patch(w, req, r, call)
	case "delete":
		o, err = s.delete(w, req, r, call)
	case "deletecollection":
		o, err = s.deleteCollection(w, req, r, call)
	}
	return o, code, err
}

// watches are the running ones.
type watches struct {
	mu      sync.Mutex
	next    int
	running map[int]running
}

type running struct {
	call Request
	end  context.CancelFunc
}

// add notes a watch and returns what forgets it.
func (ws *watches) add(call Request, end func()) func() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.running == nil {
		ws.running = map[int]running{}
	}
	id := ws.next
	ws.next++
	ws.running[id] = running{call, end}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		delete(ws.running, id)
	}
}

func (ws *watches) drop(m Match) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, r := range ws.running {
		if m.matches(r.call) {
			r.end()
			n++
		}
	}
	return n
}

func (ws *watches) count(m Match) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, r := range ws.running {
		if m.matches(r.call) {
			n++
		}
	}
	return n
}

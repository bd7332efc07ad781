package apiserver

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
)

// errHandedOver ends a write of slices by an instance that has handed over.
var errHandedOver = errors.New("this instance has handed publishing over to another")

// Gate keeps an instance that has handed over from writing slices. The library's controller
// can only be stopped together with the sockets, which serve on until the calls in flight have
// ended, and it would put the old slices back when it sees those of the new instance.
type Gate struct {
	closed atomic.Bool
	held   atomic.Pointer[error]
}

// Close ends all writing of slices, for good.
func (g *Gate) Close() { g.closed.Store(true) }

// Hold ends all writing of slices, for that reason, until it is called with nil.
func (g *Gate) Hold(why error) {
	if why == nil {
		g.held.Store(nil)
		return
	}
	g.held.Store(&why)
}

// shut is why slices may not be written.
func (g *Gate) shut() error {
	if g.closed.Load() {
		return errHandedOver
	}
	if why := g.held.Load(); why != nil {
		return *why
	}
	return nil
}

func (g *Gate) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/resourceslices") {
			if err := g.shut(); err != nil {
				return nil, err
			}
		}
		return next.RoundTrip(req)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

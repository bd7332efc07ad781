package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// headerLimit bounds slow clients; the API server itself waits for at most 30 s.
	headerLimit = 10 * time.Second
	callLimit   = 30 * time.Second
	// endLimit is how long reviews under way may take to end.
	endLimit = 10 * time.Second
)

// Serve answers on the listener, by TLS, until the context ends, and then to the end of the
// reviews under way.
func Serve(ctx context.Context, listener net.Listener, certificate *Certificate, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, ReadTimeout: callLimit, WriteTimeout: callLimit,
		TLSConfig:   &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.Current},
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve reviews: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	err := server.Shutdown(last)
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

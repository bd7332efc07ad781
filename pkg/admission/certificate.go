package admission

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
)

// Certificate is a serving certificate in files that may be renewed at any time, as those of a
// mounted Secret are.
type Certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key []byte
	loaded    *tls.Certificate
}

// NewCertificate reads the files for the first time.
func NewCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if _, err := c.Current(nil); err != nil {
		return nil, err
	}
	return c, nil
}

// Current is tls.Config.GetCertificate. The API server keeps its connections, so the files are
// read for each new one. A pair that does not fit, as in the moment between the renewal of one
// file and of the other, leaves the one before in use.
func (c *Certificate) Current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.renew()
	if c.loaded == nil {
		return nil, err
	}
	return c.loaded, nil
}

func (c *Certificate) renew() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("key of the serving certificate: %w", err)
	}
	if c.loaded != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("serving certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.key, c.loaded = cert, key, &pair
	return nil
}

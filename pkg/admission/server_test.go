package admission_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/admission"
)

func body(t *testing.T, object string) []byte {
	t.Helper()
	out, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request(admissionv1.Create, object),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func post(t *testing.T, client *http.Client, url, contentType string, content []byte) (int, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+admission.Path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer
}

func TestHandler(t *testing.T) {
	server := httptest.NewServer(admission.Handler(reviewer))
	defer server.Close()
	const ofJSON = "application/json; charset=utf-8"
	for name, c := range map[string]struct {
		contentType string
		content     []byte
		code        int
		says        string
	}{
		"allowed":         {ofJSON, body(t, claim(ours(slicing))), http.StatusOK, `"allowed":true`},
		"refused":         {ofJSON, body(t, claim(ours(tiny))), http.StatusOK, `"allowed":false`},
		"another type":    {"text/plain", body(t, claim()), http.StatusUnsupportedMediaType, "text/plain"},
		"no type":         {"", body(t, claim()), http.StatusUnsupportedMediaType, "application/json"},
		"no JSON":         {ofJSON, []byte("{"), http.StatusBadRequest, "AdmissionReview"},
		"no request":      {ofJSON, []byte(`{"apiVersion":"admission.k8s.io/v1"}`), http.StatusBadRequest, "request"},
		"another version": {ofJSON, bytes.Replace(body(t, claim()), []byte("k8s.io/v1"), []byte("k8s.io/v9"), 1), http.StatusBadRequest, "admission.k8s.io/v1"},
		"endless":         {ofJSON, make([]byte, 5<<20), http.StatusRequestEntityTooLarge, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			code, answer := post(t, server.Client(), server.URL, c.contentType, c.content)
			if code != c.code || !strings.Contains(string(answer), c.says) {
				t.Errorf("%d: %s", code, answer)
			}
			var review admissionv1.AdmissionReview
			if c.code == http.StatusOK {
				if err := json.Unmarshal(answer, &review); err != nil || review.Response.UID != "the-uid" || review.Kind != "AdmissionReview" {
					t.Errorf("%s: %v", answer, err)
				}
			}
		})
	}
	for _, path := range []string{"/readyz", "/healthz"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v", path, response, err)
		}
		_ = response.Body.Close()
	}
}

// pair makes a certificate for a name and writes it with its key.
func pair(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	return cert, key
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// trusting is a client that believes the certificate in the file, for its name alone.
func trusting(t *testing.T, cert, name string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A renewed certificate is in use with the next connection, and half a renewal breaks nothing.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, dir, "first.example.com")
	certificate, err := admission.NewCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- admission.Serve(ctx, listener, certificate, admission.Handler(reviewer)) }()
	url := "https://" + listener.Addr().String()
	asks := func(client *http.Client) {
		t.Helper()
		if code, answer := post(t, client, url, "application/json", body(t, claim(ours(slicing)))); code != http.StatusOK {
			t.Errorf("%d: %s", code, answer)
		}
	}
	first := trusting(t, cert, "first.example.com")
	asks(first)
	write(t, key, []byte("half a renewal"))
	first.CloseIdleConnections()
	asks(first)
	pair(t, dir, "second.example.com")
	asks(trusting(t, cert, "second.example.com"))
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	asks(trusting(t, cert, "second.example.com"))
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A review that is under way when the webhook is stopped is answered.
func TestServeEndsReviewsFirst(t *testing.T) {
	cert, key := pair(t, t.TempDir(), "first.example.com")
	certificate, err := admission.NewCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end()
		if r.Context().Err() != nil {
			t.Error("the review was cut short")
		}
		admission.Handler(reviewer).ServeHTTP(w, r)
	})
	ended := make(chan error, 1)
	go func() { ended <- admission.Serve(ctx, listener, certificate, slow) }()
	code, answer := post(t, trusting(t, cert, "first.example.com"), "https://"+listener.Addr().String(), "application/json", body(t, claim()))
	if code != http.StatusOK {
		t.Errorf("%d: %s", code, answer)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCertificateThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, dir, "a.example.com")
	other, _ := pair(t, t.TempDir(), "b.example.com")
	for name, c := range map[string][2]string{
		"no certificate": {filepath.Join(dir, "none"), key},
		"no key":         {cert, filepath.Join(dir, "none")},
		"of another":     {other, key},
	} {
		if _, err := admission.NewCertificate(c[0], c[1]); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServeOnAClosedListener(t *testing.T) {
	cert, key := pair(t, t.TempDir(), "a.example.com")
	certificate, err := admission.NewCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if err := admission.Serve(t.Context(), listener, certificate, http.NotFoundHandler()); err == nil {
		t.Error("no error")
	}
}

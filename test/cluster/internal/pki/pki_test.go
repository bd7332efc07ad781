package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, s *Store, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(s.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestIssuedCertificateIsGoodForServerAndClient(t *testing.T) {
	s := open(t)
	id := Identity{CommonName: "system:node:n", Organizations: []string{"system:nodes"}, DNSNames: []string{"n"}, IPs: []net.IP{net.IPv4(198, 18, 0, 2)}}
	if err := s.Issue("n", id); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(s.Path("n.crt"), s.Path("n.key"))
	if err != nil {
		t.Fatal(err)
	}
	cert := pair.Leaf
	if cert.Subject.CommonName != id.CommonName || len(cert.Subject.Organization) != 1 || cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("subject is %s", cert.Subject)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read(t, s, "ca.crt"))
	for _, host := range []string{"n", "198.18.0.2"} {
		options := x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		if _, err := cert.Verify(options); err != nil {
			t.Errorf("as server %s: %v", host, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("as client: %v", err)
	}
	info, err := os.Stat(s.Path("n.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key has mode %v, %v; want 0600", info.Mode(), err)
	}
}

// Running processes hold what the folder had before: it must not change under them.
func TestWhatIsThereStays(t *testing.T) {
	s := open(t)
	make := func(s *Store) {
		if err := s.Issue("a", Identity{CommonName: "a"}); err != nil {
			t.Fatal(err)
		}
		if err := s.ServiceAccountKey(); err != nil {
			t.Fatal(err)
		}
	}
	make(s)
	names := []string{"ca.crt", "ca.key", "a.crt", "a.key", "sa.key", "sa.pub"}
	before := map[string][]byte{}
	for _, n := range names {
		before[n] = read(t, s, n)
	}
	again, err := Open(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	make(again)
	for _, n := range names {
		if !bytes.Equal(before[n], read(t, again, n)) {
			t.Errorf("%s changed", n)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	s := open(t)
	if _, err := s.Kubeconfig("nobody", "https://192.0.2.1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a certificate: %v, want ErrNotExist", err)
	}
	if err := s.Issue("admin", Identity{CommonName: "admin"}); err != nil {
		t.Fatal(err)
	}
	path, err := s.Kubeconfig("admin", "https://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://192.0.2.1" || !bytes.Equal(config.CertData, read(t, s, "admin.crt")) || !bytes.Equal(config.CAData, read(t, s, "ca.crt")) {
		t.Errorf("configuration for %s does not hold what was issued", config.Host)
	}
}

func TestDamagedAuthorityIsNamed(t *testing.T) {
	for name, damage := range map[string]string{"certificate": "ca.crt", "key": "ca.key"} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			if err := os.WriteFile(s.Path(damage), []byte("nonsense"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(s.Dir); !errors.Is(err, errPEM) {
				t.Errorf("got %v, want errPEM", err)
			}
		})
	}
}

func TestOpenNeedsAFolder(t *testing.T) {
	s := open(t)
	if _, err := Open(s.Path("ca.crt")); err == nil {
		t.Error("a file was taken for a folder")
	}
}

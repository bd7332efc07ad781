// Package pki keeps a cluster's certificates, keys and kubeconfigs in one folder. What is
// there stays; what is missing is made. The certificates are for tests: they live for ten
// years and their keys lie unencrypted on disk. It does not know who uses them.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const lifetime = 10 * 365 * 24 * time.Hour

// errPEM is wrapped when a file does not hold what its name says.
var errPEM = errors.New("unexpected PEM content")

// Store is a folder with one certificate authority and what it has signed.
type Store struct {
	Dir string
	ca  *x509.Certificate
	key crypto.Signer
}

// Identity is the subject of a certificate, good as client and as server.
type Identity struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
}

// Open reads the authority in dir, or makes one.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	s := &Store{Dir: dir}
	if err := s.once("ca", s.makeCA); err != nil {
		return nil, err
	}
	return s, s.loadCA()
}

// Path is the path of a file of the store, such as "ca.crt" or "admin.key".
func (s *Store) Path(name string) string { return filepath.Join(s.Dir, name) }

// once runs create unless NAME.crt is there; create must write that file last.
func (s *Store) once(name string, create func() error) error {
	_, err := os.Stat(s.Path(name + ".crt"))
	if errors.Is(err, fs.ErrNotExist) {
		err = create()
	}
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return nil
}

func (s *Store) makeCA() error {
	template, err := newTemplate("cluster-ca")
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return s.write("ca", template, template, key, key)
}

func (s *Store) loadCA() error {
	der, err := s.readPEM("ca.crt", "CERTIFICATE")
	if err != nil {
		return err
	}
	if s.ca, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("ca.crt: %w", err)
	}
	if der, err = s.readPEM("ca.key", "PRIVATE KEY"); err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return fmt.Errorf("ca.key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("%w: ca.key is a %T", errPEM, key)
	}
	s.key = signer
	return nil
}

func (s *Store) readPEM(name, kind string) ([]byte, error) {
	raw, err := os.ReadFile(s.Path(name))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%w: %s has no %s: remove the folder to make a new one", errPEM, s.Path(name), kind)
	}
	return block.Bytes, nil
}

// Issue makes NAME.crt and NAME.key unless they are there.
func (s *Store) Issue(name string, id Identity) error {
	return s.once(name, func() error {
		template, err := newTemplate(id.CommonName)
		if err != nil {
			return err
		}
		template.Subject.Organization = id.Organizations
		template.DNSNames, template.IPAddresses = id.DNSNames, id.IPs
		template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		return s.write(name, template, s.ca, key, s.key)
	})
}

func newTemplate(commonName string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		// An hour back, so that a clock that is set right meanwhile does not lock us out.
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
	}, nil
}

func (s *Store) write(name string, template, parent *x509.Certificate, key, signer crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	if err := s.writeKey(name, key); err != nil {
		return err
	}
	return s.writePEM(name+".crt", "CERTIFICATE", der, 0o644)
}

func (s *Store) writeKey(name string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return s.writePEM(name+".key", "PRIVATE KEY", der, 0o600)
}

func (s *Store) writePEM(name, kind string, der []byte, mode fs.FileMode) error {
	return renameio.WriteFile(s.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// ServiceAccountKey makes sa.key and sa.pub, with which tokens are signed and checked.
func (s *Store) ServiceAccountKey() error {
	if _, err := os.Stat(s.Path("sa.pub")); err == nil {
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	if err := s.writeKey("sa", key); err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	return s.writePEM("sa.pub", "PUBLIC KEY", der, 0o644)
}

// Kubeconfig writes NAME.kubeconfig, which holds the certificate of that name whole, and
// returns its path.
func (s *Store) Kubeconfig(name, server string) (string, error) {
	read := func(file string) []byte {
		raw, _ := os.ReadFile(s.Path(file)) // checked below, together
		return raw
	}
	ca, cert, key := read("ca.crt"), read(name+".crt"), read(name+".key")
	if len(ca) == 0 || len(cert) == 0 || len(key) == 0 {
		return "", fmt.Errorf("kubeconfig %s: %w: no such certificate in %s", name, fs.ErrNotExist, s.Dir)
	}
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: "cluster", AuthInfo: name}},
		CurrentContext: name,
	}
	path := s.Path(name + ".kubeconfig")
	raw, err := clientcmd.Write(config)
	if err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	if err := renameio.WriteFile(path, raw, 0o600); err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	return path, nil
}

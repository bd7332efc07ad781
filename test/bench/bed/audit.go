package bed

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
)

// auditEvent is what is read of an event in an audit log.
type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource string `json:"resource"`
	} `json:"objectRef"`
}

// parseAudit reads an audit log, one JSON object a line. A line that is still being written is left out.
func parseAudit(raw []byte) ([]Request, error) {
	whole := raw[:bytes.LastIndexByte(raw, '\n')+1]
	decoder := json.NewDecoder(bytes.NewReader(whole))
	var all []Request
	for {
		var e auditEvent
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		all = append(all, Request{User: e.User.Username, Verb: e.Verb, Resource: e.ObjectRef.Resource})
	}
}

// signingKey makes the key that a kube-apiserver wants for service accounts.
func signingKey() ([]byte, error) {
	const bits = 2048
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		return nil, fmt.Errorf("service account key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("service account key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

package bed

import (
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const auditLog = `{"kind":"Event","verb":"create","user":{"username":"bench-idler"},"objectRef":{"resource":"resourceslices","name":"a"}}
{"kind":"Event","verb":"get","user":{"username":"bench-starter"},"requestURI":"/version"}
`

func TestParseAudit(t *testing.T) {
	want := []Request{{Idler, "create", "resourceslices"}, {Starter, "get", ""}}
	for name, text := range map[string]string{"whole": auditLog, "a line under way": auditLog + `{"kind":"Ev`} {
		got, err := parseAudit([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", name, diff)
		}
	}
	if got, err := parseAudit(nil); err != nil || len(got) != 0 {
		t.Errorf("an empty log: %v, %v", got, err)
	}
	if _, err := parseAudit([]byte("no JSON\n")); err == nil {
		t.Error("no error for a broken line")
	}
}

func FuzzParseAudit(f *testing.F) {
	f.Add([]byte(auditLog))
	f.Fuzz(func(t *testing.T, raw []byte) {
		whole, err := parseAudit(raw)
		if err != nil {
			return
		}
		// What is still being written changes nothing of what is there.
		more, err := parseAudit(append(append([]byte{}, raw[:lastLine(raw)]...), `{"verb":"get"`...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole, more); diff != "" {
			t.Errorf("requests beside a line under way (-want +got):\n%s", diff)
		}
	})
}

func lastLine(raw []byte) int {
	for i := len(raw); i > 0; i-- {
		if raw[i-1] == '\n' {
			return i
		}
	}
	return 0
}

func TestWrite(t *testing.T) {
	for verb, want := range map[string]bool{"get": false, "list": false, "watch": false, "create": true, "update": true, "patch": true, "delete": true, "deletecollection": true} {
		if got := (Request{Verb: verb}).Write(); got != want {
			t.Errorf("%s: %v, want %v", verb, got, want)
		}
	}
}

func TestSigningKey(t *testing.T) {
	text, err := signingKey()
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(text)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", text)
	}
	if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
		t.Error(err)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	different := map[string]bool{}
	for _, p := range ports {
		different[p] = true
	}
	if len(different) != 3 {
		t.Errorf("ports %q, want three different ones", ports)
	}
}

package progress

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStepReportsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out)
		err := p.Step("build etcd", func(note func(string)) error {
			note("(1 package)")
			time.Sleep(15 * time.Second)
			note("(2 packages)")
			time.Sleep(10 * time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := "[  10.0s] build etcd ... 10 s (1 package)\n" +
			"[  20.0s] build etcd ... 20 s (2 packages)\n" +
			"[  25.0s] build etcd: 25.0 s\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
	})
}

func TestStepReturnsTheError(t *testing.T) {
	var out bytes.Buffer
	want := errors.New("no")
	if err := New(&out).Step("s", func(func(string)) error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	if !strings.Contains(out.String(), "s: failed after") {
		t.Errorf("the failure was not told: %q", out.String())
	}
}

// A broken pipe on standard error must not fail the work.
func TestSayIgnoresAFailingWriter(t *testing.T) {
	p := New(failing{})
	p.Say("x")
	if err := p.Step("s", func(func(string)) error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

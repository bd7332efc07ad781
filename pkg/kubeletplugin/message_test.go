package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
)

func TestInOneLine(t *testing.T) {
	plain := errors.New("plain")
	if got := inOneLine(plain); got != plain { //nolint:errorlint // it must be the same
		t.Errorf("a short message was changed: %v", got)
	}
	if got := inOneLine(errors.Join(plain, errors.New("other"))).Error(); got != "plain; other" {
		t.Errorf("two lines became %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		cause := errors.New(rapid.String().Draw(t, "cause"))
		filler := strings.Repeat(rapid.StringN(1, 8, -1).Draw(t, "filler"), rapid.IntRange(0, 2000).Draw(t, "times"))
		got := inOneLine(fmt.Errorf("begin: %s: %w", filler, cause))
		if text := got.Error(); len(text) > maxMessage || strings.ContainsAny(text, "\n\r") || !strings.HasPrefix(text, "begin") {
			t.Fatalf("%d bytes: %q", len(text), text)
		}
		if !errors.Is(got, cause) {
			t.Fatal("the cause is lost")
		}
	})
}

// The kubelet and whoever makes Events get the short text; what kind of error it is stays known.
func TestTheKubeletGetsOneShortLine(t *testing.T) {
	n := &node{}
	failure := &claims.Error{Reason: claims.ReasonConfig, Err: errors.New(strings.Repeat("long\n", 2000) + "remedy")}
	err := n.plugin().call(t.Context(), metrics.Prepare, claims.Ref{Name: "c"}, func(context.Context) error { return failure })
	if err == nil || len(err.Error()) > maxMessage || strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "remedy") {
		t.Errorf("the kubelet gets %v", err)
	}
	if !errors.Is(err, failure) || !claims.Permanent(err) {
		t.Error("the error's kind is lost")
	}
	if len(n.failed) != 1 || len(n.failed[0]) > maxMessage+len("prepare c: ") || len(n.outcomes) != 1 || !strings.Contains(n.outcomes[0], string(metrics.ReasonConfig)) {
		t.Errorf("reported %v, counted %v", n.failed, n.outcomes)
	}
}

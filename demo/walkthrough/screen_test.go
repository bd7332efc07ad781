package walkthrough

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScreenTellsTheTimeOfLongSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&out, false)
		s.heading(1, 7, "Title")
		if err := s.during("build", func() error { time.Sleep(25 * time.Second); return nil }); err != nil {
			t.Error(err)
		}
		s.block("one\n\ttwo \n\n")
		want := strings.Join([]string{
			"", "[  0.0 s] 1/7 Title", "[  0.0 s] build ...", "[ 10.0 s] build ... 10 s", "[ 20.0 s] build ... 20 s", "[ 25.0 s] ok build (25.0 s)", "    one", "    \ttwo", "",
		}, "\n")
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestScreenPassesFailuresOn(t *testing.T) {
	var out bytes.Buffer
	failure := errors.New("broken")
	if err := newScreen(&out, false).during("build", func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	if strings.Contains(out.String(), "ok") {
		t.Errorf("%q calls it good", out.String())
	}
}

func TestColourOnlyWhereAsked(t *testing.T) {
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		s := newScreen(&out, colour)
		s.heading(1, 1, "Title")
		s.found("it")
		if got := strings.Contains(out.String(), "\x1b["); got != colour {
			t.Errorf("colour %v gave %q", colour, out.String())
		}
		if strings.Count(out.String(), "\x1b[0m") != strings.Count(out.String(), "\x1b[")/2 {
			t.Errorf("a colour is not ended in %q", out.String())
		}
	}
}

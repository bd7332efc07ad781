package walkthrough

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProblemSaysWhatToDo(t *testing.T) {
	cause := errors.New("it broke")
	p := &Problem{Err: cause, Component: "the log", Log: []string{"a", "b"}, Advice: "try again"}
	want := "it broke\n  the last lines of the log:\n    a\n    b\n  what to do: try again"
	if p.Error() != want || !errors.Is(p, cause) {
		t.Errorf("%q, want %q", p.Error(), want)
	}
	if got := (&Problem{Err: cause}).Error(); got != "it broke" {
		t.Errorf("bare: %q", got)
	}
}

func TestLastLines(t *testing.T) {
	var log strings.Builder
	for i := range 40 {
		fmt.Fprintf(&log, "line %d\r\n", i)
	}
	log.WriteString(strings.Repeat("ä", 1000) + "\n\n")
	got := lastLines([]byte(log.String()))
	if len(got) != 15 || got[0] != "line 26" || got[14] != strings.Repeat("ä", 240)+"…" {
		t.Errorf("%d lines: %q", len(got), got)
	}
	if got := lastLines(nil); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
}

func TestLastLinesOfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := lastLinesOf(path); len(got) != 1 || !strings.Contains(got[0], "no such file") {
		t.Errorf("absent: %q", got)
	}
	if err := os.WriteFile(path, []byte("only\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"only"}, lastLinesOf(path)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

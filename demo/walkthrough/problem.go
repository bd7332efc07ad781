package walkthrough

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// Problem is a failure of the walk as the viewer is told it.
type Problem struct {
	Err error
	// Component is what Log is from; both are empty where there is none.
	Component string
	// Log are the last lines.
	Log []string
	// Advice says what to do.
	Advice string
}

// Error is a text of several lines: the failure, the log and the advice.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Err.Error())
	if len(p.Log) > 0 {
		fmt.Fprintf(&b, "\n  the last lines of %s:\n    %s", p.Component, strings.Join(p.Log, "\n    "))
	}
	if p.Advice != "" {
		fmt.Fprintf(&b, "\n  what to do: %s", p.Advice)
	}
	return b.String()
}

// Unwrap gives the failure.
func (p *Problem) Unwrap() error { return p.Err }

// lastLines are the end of a log, long lines cut.
func lastLines(log []byte) []string {
	const most, longest = 15, 240
	var lines []string
	for line := range bytes.Lines(bytes.TrimSpace(log)) {
		letters := []rune(strings.TrimRight(string(line), "\r\n"))
		if len(letters) > longest {
			letters = append(letters[:longest], '…')
		}
		lines = append(lines, string(letters))
	}
	return lines[max(0, len(lines)-most):]
}

// lastLinesOf reads them from a file; one that is not there has none.
func lastLinesOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{fmt.Sprintf("(%v)", err)}
	}
	return lastLines(text)
}

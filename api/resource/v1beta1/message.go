package v1beta1

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxEcho bounds, in bytes, how much of one thing that a user wrote a message repeats: a
	// configuration may have 10 KiB, and its message goes to a log and an Event at each retry.
	maxEcho = 100
	// maxMistakes bounds how many mistakes a message lists.
	maxMistakes = 5
)

// cut shortens what a user wrote, for a message.
func cut[S ~string](s S) S {
	if len(s) <= maxEcho {
		return s
	}
	return S(strings.ToValidUTF8(string(s[:maxEcho]), "") + "…")
}

// inPath is a key as part of a field's path, which shows it without quotes: shortened, and with
// what does not print escaped.
func inPath(key string) string {
	quoted := strconv.Quote(cut(key))
	return quoted[1 : len(quoted)-1]
}

// mistakesError is several mistakes in one configuration, in one line.
type mistakesError []error

func (e mistakesError) Error() string {
	var texts []string
	for _, mistake := range e[:min(len(e), maxMistakes)] {
		texts = append(texts, mistake.Error())
	}
	if more := len(e) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func (e mistakesError) Unwrap() []error { return e }

package kubeletplugin

import "strings"

const (
	// maxMessage bounds, in bytes, what is said of one claim's failure. The kubelet logs
	// it and makes an Event of it at each retry.
	maxMessage = 1000
	// gap stands for what was cut out.
	gap = " … "
	// tail is how much of a message's end is kept: the root cause and what to do come last.
	tail = 400
)

// messageError is an error with a text that fits into an Event.
type messageError struct {
	text string
	err  error
}

func (e *messageError) Error() string { return e.text }

func (e *messageError) Unwrap() error { return e.err }

// inOneLine gives the error with a text of one line of at most maxMessage bytes. Joined errors
// have a line each.
func inOneLine(err error) error {
	was := err.Error()
	text := strings.Join(strings.FieldsFunc(was, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if len(text) > maxMessage {
		head := text[:maxMessage-tail-len(gap)]
		text = strings.ToValidUTF8(head, "") + gap + strings.ToValidUTF8(text[len(text)-tail:], "")
	}
	if text == was {
		return err
	}
	return &messageError{text: text, err: err}
}

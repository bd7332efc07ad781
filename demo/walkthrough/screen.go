package walkthrough

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Colours, as terminals know them.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	green = "\x1b[32m"
	plain = "\x1b[0m"
)

// tick is how often a step that takes long says that it is still at work.
const tick = 10 * time.Second

// screen is what the viewer reads: one line for each thing done, with the time since the start,
// and indented blocks. It may be used by several goroutines.
type screen struct {
	out    io.Writer
	colour bool
	start  time.Time

	mu sync.Mutex
}

func newScreen(out io.Writer, colour bool) *screen {
	return &screen{out: out, colour: colour, start: time.Now()}
}

func (s *screen) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	return colour + text + plain
}

// elapsed is the time since the start.
func (s *screen) elapsed() time.Duration { return time.Since(s.start) }

// say writes a line with the time so far.
func (s *screen) say(text string) {
	s.write(s.paint(dim, fmt.Sprintf("[%5.1f s]", s.elapsed().Seconds())) + " " + text + "\n")
}

// heading opens a part of the walk.
func (s *screen) heading(number, of int, title string) {
	s.write("\n")
	s.say(s.paint(bold, fmt.Sprintf("%d/%d %s", number, of, title)))
}

// found tells a result that was checked.
func (s *screen) found(format string, args ...any) {
	s.say(s.paint(green, "ok") + " " + fmt.Sprintf(format, args...))
}

// block writes lines of text, indented.
func (s *screen) block(text string) {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		b.WriteString(strings.TrimRight("    "+strings.TrimRight(line, "\n"), " ") + "\n")
	}
	s.write(b.String())
}

func (s *screen) write(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A terminal that went away must not keep the walk from tidying up.
	_, _ = io.WriteString(s.out, text)
}

// during runs do and says what is being done, every few seconds that it still is, and how long
// it took.
func (s *screen) during(what string, do func() error) error {
	began := time.Now()
	s.say(what + " ...")
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				s.say(fmt.Sprintf("%s ... %.0f s", what, time.Since(began).Seconds()))
			}
		}
	}()
	err := do()
	close(done)
	<-ended
	if err == nil {
		s.found("%s (%.1f s)", what, time.Since(began).Seconds())
	}
	return err
}

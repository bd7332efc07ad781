package cluster

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// pulse is how often a long step shows that it lives.
const pulse = 10 * time.Second

// teller tells a viewer what is done and how long it takes. It may be used by several goroutines.
type teller struct {
	out   io.Writer
	start time.Time
	log   *lastLine

	mu sync.Mutex
}

func newTeller(out io.Writer, log *lastLine) *teller {
	return &teller{out: out, start: time.Now(), log: log}
}

// line writes one line, with the time since the start.
func (t *teller) line(format string, args ...any) {
	t.show(fmt.Sprintf("%6.1fs  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...)))
}

// show writes text as it is. A terminal that has gone must not stop the work.
func (t *teller) show(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.out, text)
}

// quote shows what somebody else said, set off from what the teller says.
func (t *teller) quote(text string) {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		b.WriteString("       | " + line)
	}
	t.show(b.String())
}

// step does something and tells how long it took; while it takes long, the last line that the
// tools wrote shows how far it is.
func (t *teller) step(what string, do func() error) error {
	began := time.Now()
	t.log.forget()
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(pulse)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				t.line("%s", pending(what, time.Since(began), t.log.get()))
			}
		}
	})
	err := do()
	close(ended)
	watching.Wait()
	if err != nil {
		t.line("%s: FAILED after %.1fs", what, time.Since(began).Seconds())
		return err
	}
	t.line("%s: %.1fs", what, time.Since(began).Seconds())
	return nil
}

// pending says that a step is not done yet, and the tools' last line where they wrote one.
func pending(what string, since time.Duration, last string) string {
	text := fmt.Sprintf("%s: not yet, %s so far", what, since.Round(time.Second))
	if last != "" {
		text += ": " + last
	}
	return text
}

// lastLine passes on what it is given and keeps the last line that is not empty.
type lastLine struct {
	to io.Writer

	mu      sync.Mutex
	partial []byte
	last    string
}

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, rest, whole := bytes.Cut(l.partial, []byte("\n"))
		if !whole {
			break
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			l.last = text
		}
		l.partial = rest
	}
	return l.to.Write(p)
}

// forget makes get answer with nothing until the next line.
func (l *lastLine) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = ""
}

func (l *lastLine) get() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

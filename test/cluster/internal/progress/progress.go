// Package progress tells a waiting person what is being done, how long the whole and each
// step took, and, every few seconds, that a long step still lives. It knows nothing of what
// the steps do.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// tick is how often a running step reports itself.
const tick = 10 * time.Second

// Printer writes one line per step. It is safe for concurrent use.
type Printer struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// New starts the clock of the whole.
func New(out io.Writer) *Printer { return &Printer{out: out, start: time.Now()} }

// Say writes a line with the time since the start.
func (p *Printer) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A terminal that has gone away must not stop the work.
	_, _ = fmt.Fprintf(p.out, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// Step runs do and reports its end. While it runs, a line every few seconds shows the last
// note that it gave.
func (p *Printer) Step(what string, do func(note func(string)) error) error {
	began := time.Now()
	var (
		mu   sync.Mutex
		last string
	)
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		last = s
	}
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
				mu.Lock()
				s := last
				mu.Unlock()
				p.Say("%s ... %.0f s %s", what, time.Since(began).Seconds(), s)
			}
		}
	}()
	err := do(note)
	close(done)
	<-ended
	if err != nil {
		p.Say("%s: failed after %.1f s", what, time.Since(began).Seconds())
		return err
	}
	p.Say("%s: %.1f s", what, time.Since(began).Seconds())
	return nil
}

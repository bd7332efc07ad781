// Package finding holds what checks report, and prints it. It is for audit and doctor. It must not
// know what is checked.
package finding

import (
	"io"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Severity says how bad a finding is.
type Severity string

// The severities: an error breaks things, a warning costs speed or safety, ok is no finding.
const (
	OK      Severity = "ok"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Finding is what a check found on one subject.
type Finding struct {
	Subject  string   `json:"subject"`
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	// Why it matters and how to fix it; empty when all is well.
	Why string `json:"why,omitempty"`
	Fix string `json:"fix,omitempty"`
}

// Report is the result of many checks.
type Report struct {
	// Of names the printed object.
	Of       string    `json:"-"`
	Findings []Finding `json:"findings"`
}

// Kind names the object.
func (r Report) Kind() string { return r.Of }

// Add adds a finding.
func (r *Report) Add(f Finding) { r.Findings = append(r.Findings, f) }

// Count is how many findings have a severity.
func (r Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Text writes the findings; wide lists also the checks that found nothing.
func (r Report) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	last := ""
	for _, f := range r.Findings {
		if f.Severity == OK && !wide {
			continue
		}
		if f.Subject != last {
			w.Printf("%s\n", f.Subject)
			last = f.Subject
		}
		w.Printf("  %-8s %-14s %s\n", f.Severity, f.Check, f.Message)
		if f.Why != "" {
			w.Printf("           why: %s\n", f.Why)
		}
		if f.Fix != "" {
			w.Printf("           fix: %s\n", f.Fix)
		}
	}
	w.Printf("%d checks: %d errors, %d warnings\n", len(r.Findings), r.Count(Error), r.Count(Warning))
	return w.Err
}

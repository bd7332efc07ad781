package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Status is how a device is, as the kubelet is told.
type Status string

// The statuses.
const (
	Healthy   Status = "Healthy"
	Unhealthy Status = "Unhealthy"
	// Unknown: it serves, and nobody would notice if it fell ill.
	Unknown Status = "Unknown"
)

// Verdict is what is wrong with one device.
type Verdict struct {
	// Faults are all that count for it, the gravest first.
	Faults []Fault
	// Recovering tells that nothing but the hold-down keeps the device away, which then ends.
	Recovering time.Time
}

// Verdict judges the GPU as a whole, or with a place the GPU instance there.
func (r Record) Verdict(place *Place, timing Timing) Verdict {
	var v Verdict
	held := true
	for _, f := range r.Faults {
		if f.Place != nil && (place == nil || *place != *f.Place) {
			continue
		}
		v.Faults = append(v.Faults, f)
		if f.Severity < Avoid {
			continue
		}
		held = held && r.well(f)
		if due := r.due(f, timing); due.After(v.Recovering) {
			v.Recovering = due
		}
	}
	if !held || v.Severity() < Avoid {
		v.Recovering = time.Time{}
	}
	return v
}

// Severity is the gravest fault's.
func (v Verdict) Severity() Severity {
	if len(v.Faults) == 0 {
		return Ignore
	}
	return v.Faults[0].Severity
}

// Status is what the kubelet and the claim are told.
func (v Verdict) Status() Status {
	switch {
	case v.Severity() >= Avoid:
		return Unhealthy
	case slices.ContainsFunc(v.Faults, func(f Fault) bool { return f.Kind == Unmonitored }):
		return Unknown
	}
	return Healthy
}

// maxMessage is the most that the kubelet keeps of a message, in bytes.
const maxMessage = 1024

// Message says for people what is wrong and what to do; empty where nothing is. It has at most
// 1024 bytes.
func (v Verdict) Message() string {
	var parts []string
	for _, f := range v.Faults {
		parts = append(parts, f.sentence())
	}
	if !v.Recovering.IsZero() {
		parts = append(parts, "Well again: it returns at "+v.Recovering.UTC().Format(time.RFC3339)+" if it stays so.")
	}
	text := strings.Join(parts, " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage-len("...")], "") + "..."
	}
	return text
}

func (f Fault) sentence() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s since %s", f, f.First.UTC().Format(time.RFC3339))
	if f.Count > 1 {
		fmt.Fprintf(&b, ", %d times", f.Count)
	}
	if f.Old {
		b.WriteString(", before the last reboot")
	}
	for _, text := range []string{f.Means, f.Detail} {
		if text != "" {
			b.WriteString(": " + strings.TrimSuffix(text, "."))
		}
	}
	b.WriteString(".")
	if f.Do != "" {
		b.WriteString(" " + strings.TrimSuffix(f.Do, ".") + ".")
	}
	return b.String()
}

// Reason is the gravest fault in one word for machines, "XID79"; empty where nothing is wrong.
func (v Verdict) Reason() string {
	if len(v.Faults) == 0 {
		return ""
	}
	f := v.Faults[0]
	var b strings.Builder
	up := true
	for _, c := range string(f.Kind) + "-" + f.Code {
		switch {
		case c == '-':
			up = true
		case up:
			b.WriteString(strings.ToUpper(string(c)))
			up = false
		default:
			b.WriteRune(c)
		}
	}
	return strings.Replace(b.String(), "Xid", "XID", 1)
}

// Worst gives the gravest fault of each kind, by kind: of equal ones that which lasts, before one
// that is over and held down.
func (v Verdict) Worst() map[Kind]Fault {
	out := map[Kind]Fault{}
	for _, f := range v.Faults {
		had, ok := out[f.Kind]
		if !ok || had.Severity == f.Severity && f.On && !had.On {
			out[f.Kind] = f
		}
	}
	return out
}

package health

import (
	"slices"
	"strconv"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// Record is all that is known of the health of one GPU. It is a value: steps give new ones.
type Record struct {
	inventory.GPUID
	// Faults are those that count now, the gravest first.
	Faults []Fault `json:"faults,omitzero"`
	// Past are faults that are over, for a while: so a fault that comes back is known.
	Past []Past `json:"past,omitzero"`
	// Looked is when the GPU last answered, Action what recovery it needed then.
	Looked time.Time `json:"looked,omitzero"`
	Action Action    `json:"action,omitzero"`
	// Back is when the GPU was last seen again after it was lost: a reset lies between.
	Back time.Time `json:"back,omitzero"`
}

// Past is a fault that is over.
type Past struct {
	Kind  Kind      `json:"kind"`
	Code  string    `json:"code,omitzero"`
	Place *Place    `json:"place,omitzero"`
	Again int       `json:"again,omitzero"`
	Ended time.Time `json:"ended"`
}

// Timing says how long things take.
type Timing struct {
	// Hold is how long a GPU must be well before a fault is over.
	Hold time.Duration
	// NoteHold is the same for faults that keep nothing away.
	NoteHold time.Duration
	// MaxHold bounds the hold-down of a fault that keeps coming back.
	MaxHold time.Duration
	// Memory is how soon a fault must come back to count as the same one again.
	Memory time.Duration
}

// DefaultTiming is what the plugin starts from.
func DefaultTiming() Timing {
	return Timing{Hold: 30 * time.Second, NoteHold: 5 * time.Minute, MaxHold: time.Hour, Memory: time.Hour}
}

// Rules are the table and the times.
type Rules struct {
	Table  *Table
	Timing Timing
}

// Observation is one thing that was noticed of a GPU: an Error, a Look, Instances, Unwatched or Nothing.
type Observation interface {
	apply(r *Record, rules Rules, now time.Time)
}

// Error is an error that the driver reported.
type Error struct {
	// Code is the XID.
	Code int
	// Place is the GPU instance that it names; nil for none.
	Place *Place
	// Detail is what else was said; may be empty.
	Detail string
}

// Look is an attempt to read the GPU's state.
type Look struct {
	Reach Reach
	// Action is the recovery that the driver asks for.
	Action Action
	// On are the conditions that the GPU is in; those of the kinds in Blind could not be seen.
	On    []Condition
	Blind []Kind
}

// Condition is a state of a GPU that is a fault while it lasts.
type Condition struct {
	Kind   Kind
	Code   string
	Detail string
}

// Reach is how a GPU answered.
type Reach int

// The answers.
const (
	// Answers: it was read.
	Answers Reach = iota
	// Fails: calls return errors that say nothing of its health.
	Fails
	// Gone: the driver says that it is lost.
	Gone
	// Hangs: calls do not return.
	Hangs
)

// Instances are the GPU instances that there are; faults of others are over.
type Instances []Place

// Unwatched tells whether errors of the GPU would go unnoticed.
type Unwatched struct {
	Yes bool
	Why string
}

// Step gives the record after an observation at a time. It changes nothing of the record given.
func Step(r Record, o Observation, rules Rules, now time.Time) Record {
	r.Faults, r.Past = slices.Clone(r.Faults), slices.Clone(r.Past)
	o.apply(&r, rules, now)
	r.settle(rules.Timing, now)
	return r
}

// Pass gives the record at a later time, when nothing was observed.
func Pass(r Record, rules Rules, now time.Time) Record { return Step(r, Nothing{}, rules, now) }

// Nothing is the observation that time has passed.
type Nothing struct{}

func (Nothing) apply(*Record, Rules, time.Time) {}

func (e Error) apply(r *Record, rules Rules, now time.Time) {
	rule := rules.Table.XID(e.Code)
	if rule.Severity == Ignore {
		return
	}
	place := e.Place
	if rule.Whole {
		place = nil
	}
	f := r.fault(XID, decimal(e.Code), place, rule, rules.Timing, now)
	f.Detail = e.Detail
}

func (l Look) apply(r *Record, rules Rules, now time.Time) {
	on := l.conditions()
	if l.Reach == Answers {
		if r.has(Lost) {
			r.Back = now
		}
		r.Looked, r.Action = now, l.Action
		r.passed(on, l.Blind, now)
	}
	for _, c := range on {
		rule := rules.Table.Condition(c.Kind, c.Code)
		if rule.Severity == Ignore {
			continue
		}
		f := r.fault(c.Kind, c.Code, nil, rule, rules.Timing, now)
		f.Level, f.On, f.Detail = true, true, c.Detail
	}
}

// conditions are all that the GPU is in.
func (l Look) conditions() []Condition {
	switch l.Reach {
	case Gone:
		return []Condition{{Kind: Lost}}
	case Hangs:
		return []Condition{{Kind: Unresponsive}}
	case Fails:
		return nil
	}
	on := slices.Clone(l.On)
	if name := l.Action.fault(); name != "" {
		on = append(on, Condition{Kind: Recovery, Code: name})
	}
	return on
}

// passed notes which conditions are over.
func (r *Record) passed(on []Condition, blind []Kind, now time.Time) {
	for i := range r.Faults {
		f := &r.Faults[i]
		if !f.On || f.Kind == Unmonitored || slices.Contains(blind, f.Kind) {
			continue
		}
		if !slices.ContainsFunc(on, func(c Condition) bool { return c.Kind == f.Kind && c.Code == f.Code }) {
			// The hold-down begins here: it may have been out of sight for long.
			f.On, f.Last = false, now
		}
	}
}

func (places Instances) apply(r *Record, _ Rules, _ time.Time) {
	r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Place != nil && !slices.Contains(places, *f.Place) })
	r.Past = slices.DeleteFunc(r.Past, func(p Past) bool { return p.Place != nil && !slices.Contains(places, *p.Place) })
}

func (u Unwatched) apply(r *Record, rules Rules, now time.Time) {
	rule := rules.Table.Condition(Unmonitored, "")
	switch {
	case !u.Yes:
		// Nothing was wrong with the GPU, so nothing has to be waited for.
		r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Kind == Unmonitored })
	case rule.Severity > Ignore:
		f := r.fault(Unmonitored, "", nil, rule, rules.Timing, now)
		f.Level, f.On, f.Detail = true, true, u.Why
	}
}

// fault gives the fault, made or told again.
func (r *Record) fault(kind Kind, code string, place *Place, rule Rule, timing Timing, now time.Time) *Fault {
	want := keyOf(kind, code, place)
	i := slices.IndexFunc(r.Faults, func(f Fault) bool { return f.key() == want })
	if i < 0 {
		r.Faults = append(r.Faults, Fault{Kind: kind, Code: code, Place: place, First: now, Again: r.again(want, timing, now)})
		i = len(r.Faults) - 1
	}
	f := &r.Faults[i]
	if f.Level && !f.On {
		// It came back within its hold-down.
		f.Again++
	}
	f.Severity, f.Until, f.Means, f.Do = rule.Severity, rule.Until, rule.Means, rule.Do
	f.Last, f.Old = now, false
	if !f.On {
		f.Count++
	}
	return f
}

// again is how often a fault that comes now has come back before.
func (r *Record) again(want key, timing Timing, now time.Time) int {
	i := slices.IndexFunc(r.Past, func(p Past) bool { return keyOf(p.Kind, p.Code, p.Place) == want })
	if i < 0 {
		return 0
	}
	p := r.Past[i]
	r.Past = slices.Delete(r.Past, i, i+1)
	if now.Sub(p.Ended) > timing.Memory {
		return 0
	}
	return p.Again + 1
}

func (r *Record) has(kind Kind) bool {
	return slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Kind == kind && f.On })
}

// settle ends what is over and puts the rest in order.
func (r *Record) settle(timing Timing, now time.Time) {
	r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool {
		if !r.over(f, timing, now) {
			return false
		}
		r.Past = append(r.Past, Past{Kind: f.Kind, Code: f.Code, Place: f.Place, Again: f.Again, Ended: now})
		return true
	})
	r.Past = slices.DeleteFunc(r.Past, func(p Past) bool { return now.Sub(p.Ended) > timing.Memory })
	slices.SortFunc(r.Faults, Fault.compare)
}

// over tells whether a fault has ended.
func (r *Record) over(f Fault, timing Timing, now time.Time) bool {
	return r.well(f) && !now.Before(r.due(f, timing))
}

// well tells whether nothing but time keeps a fault from being over.
func (r *Record) well(f Fault) bool {
	if f.On || r.Looked.Before(f.Last) || !f.Level && !r.Looked.After(f.Last) || r.has(Lost) || r.has(Unresponsive) {
		return false
	}
	switch {
	case r.Action.done():
		return true
	case r.Action.known() || r.Action.Supported:
		return false
	}
	// The driver cannot say.
	return f.Until == Quiet || f.Level || f.Old || r.Back.After(f.Last)
}

// due is when a fault is over if the GPU stays well.
func (r *Record) due(f Fault, timing Timing) time.Time {
	if f.Old {
		return f.Last
	}
	return f.Last.Add(timing.hold(f))
}

// hold is the hold-down of a fault.
func (t Timing) hold(f Fault) time.Duration {
	hold := t.Hold
	if f.Severity == Note {
		hold = t.NoteHold
	}
	for range f.Again {
		if hold >= t.MaxHold {
			break
		}
		hold *= 2
	}
	return min(hold, max(t.MaxHold, t.Hold))
}

// Next is when time alone may change the record; the zero time if it cannot.
func (r Record) Next(timing Timing) time.Time {
	var next time.Time
	for _, f := range r.Faults {
		if due := r.due(f, timing); r.well(f) && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next
}

// Rebooted gives the record as it stands after a reboot of the machine.
func Rebooted(r Record) Record {
	r.Faults = slices.Clone(r.Faults)
	r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Place != nil || f.Kind == Unmonitored })
	for i := range r.Faults {
		r.Faults[i].Old, r.Faults[i].On = true, false
	}
	r.Looked, r.Back, r.Action = time.Time{}, time.Time{}, Action{}
	return r
}

// Reclassified gives the record with its faults as a table sees them: another one may have been
// in force when they were noticed.
func Reclassified(r Record, t *Table) Record {
	r.Faults = slices.Clone(r.Faults)
	for i := range r.Faults {
		f := &r.Faults[i]
		rule := t.Condition(f.Kind, f.Code)
		if f.Kind == XID {
			code, _ := strconv.Atoi(f.Code) // one that is no number is of no known XID
			rule = t.XID(code)
		}
		f.Severity, f.Until, f.Means, f.Do = rule.Severity, rule.Until, rule.Means, rule.Do
	}
	r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Severity == Ignore })
	slices.SortFunc(r.Faults, Fault.compare)
	return r
}

// Empty tells that there is nothing to remember.
func (r Record) Empty() bool { return len(r.Faults) == 0 && len(r.Past) == 0 }

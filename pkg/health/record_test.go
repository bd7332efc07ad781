package health_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
)

func begin() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func rules(t testing.TB) health.Rules {
	t.Helper()
	table, err := health.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return health.Rules{Table: table, Timing: health.DefaultTiming()}
}

// story tells a record what happens, with the time that passes in between.
type story struct {
	t      testing.TB
	rules  health.Rules
	now    time.Time
	record health.Record
}

func newStory(t testing.TB) *story { return &story{t: t, rules: rules(t), now: begin()} }

func (s *story) see(observations ...health.Observation) *story {
	for _, o := range observations {
		s.record = health.Step(s.record, o, s.rules, s.now)
	}
	return s
}

func (s *story) after(d time.Duration) *story {
	s.now = s.now.Add(d)
	s.record = health.Pass(s.record, s.rules, s.now)
	return s
}

func (s *story) severity(place *health.Place) health.Severity {
	return s.record.Verdict(place, s.rules.Timing).Severity()
}

func (s *story) want(what string, want health.Severity) *story {
	s.t.Helper()
	if got := s.severity(nil); got != want {
		s.t.Errorf("%s: %v, want %v; %+v", what, got, want, s.record)
	}
	return s
}

func action(value int) health.Action { return health.Action{Supported: true, Read: true, Value: value} }

func well() health.Look { return health.Look{Action: action(health.ActionNone)} }

func xid(code int) health.Error { return health.Error{Code: code} }

const hold = 30 * time.Second

func TestAFaultAndItsEnd(t *testing.T) {
	s := newStory(t).see(well()).want("well", health.Ignore).
		after(time.Second).see(xid(79)).want("fallen off the bus", health.Evict).
		after(time.Second).see(xid(13)).want("a harmless one after it", health.Evict).
		after(2*hold).want("nobody has looked", health.Evict).
		see(health.Look{Action: action(1)}).want("a reset is needed", health.Evict).
		after(2*hold).see(health.Look{Action: health.Action{Supported: true}}).want("nobody knows what is needed", health.Evict).
		see(health.Look{Action: action(99)}).want("an action that nobody knows", health.Evict).
		after(time.Second).see(health.Look{Reach: health.Fails}).want("it does not answer", health.Evict)
	begun := s.now.Add(time.Second)
	s.after(time.Second).see(well()).want("well, but for the unknown action's hold-down", health.Avoid)
	verdict := s.record.Verdict(nil, s.rules.Timing)
	if at := verdict.Recovering; at.IsZero() || at.After(begun.Add(hold)) {
		t.Errorf("it returns at %v", at)
	}
	s.after(hold).want("only what it did in passing is left", health.Note)
	if next := s.record.Next(s.rules.Timing); !next.After(s.now) {
		t.Errorf("next change at %v, now it is %v", next, s.now)
	}
	s.after(s.rules.Timing.NoteHold).want("all is over", health.Ignore)
	if next := s.record.Next(s.rules.Timing); !next.IsZero() {
		t.Errorf("something is to change at %v", next)
	}
}

// Where the driver has no recovery action, what it would clear ends by a reset or a reboot, and
// what needs none by quiet.
func TestWithoutRecoveryAction(t *testing.T) {
	silent := health.Look{}
	s := newStory(t).see(silent, xid(94)).after(100*hold).see(silent).want("no word of a reset", health.Avoid)
	s.after(time.Second).see(health.Look{Reach: health.Gone}).want("lost", health.Evict)
	s.after(time.Second).see(silent).want("back", health.Evict).after(hold).want("the reset has cleared it", health.Ignore)

	newStory(t).see(xid(13)).after(time.Second).see(silent).want("a program's fault", health.Note).
		after(5*time.Minute).want("quiet", health.Ignore)

	rebooted := newStory(t).see(xid(94))
	rebooted.record = health.Rebooted(rebooted.record)
	rebooted.want("after a reboot", health.Avoid).after(time.Second).see(silent).want("it was looked at", health.Ignore)
}

func TestConditions(t *testing.T) {
	pending := health.Condition{Kind: health.Memory, Code: "remap-pending"}
	failed := health.Condition{Kind: health.Memory, Code: "remap-failed"}
	on := func(c ...health.Condition) health.Look { l := well(); l.On = c; return l }
	blind := well()
	blind.Blind = []health.Kind{health.Memory}
	s := newStory(t).see(on(pending)).want("pending", health.Note).
		after(time.Second).see(on(pending, failed)).want("failed", health.Avoid).
		after(time.Hour).see(on(pending, failed)).want("still failed", health.Avoid)
	for _, f := range s.record.Faults {
		if f.Count != 1 || f.Again != 0 {
			t.Errorf("a state that lasts counts as %d, come back %d times: %v", f.Count, f.Again, f)
		}
	}
	s.after(time.Hour).see(blind).want("not to be seen", health.Avoid).
		after(time.Second).see(well()).want("over, but held", health.Avoid).
		after(hold).want("over", health.Note).
		after(s.rules.Timing.NoteHold).want("over for long", health.Ignore)
}

func TestUnmonitored(t *testing.T) {
	s := newStory(t).see(well(), health.Unwatched{Yes: true, Why: "no event set"}).want("not watched", health.Note)
	if got := s.record.Verdict(nil, s.rules.Timing).Status(); got != health.Unknown {
		t.Error(got)
	}
	s.after(time.Hour).see(well()).want("still not watched", health.Note)
	s.see(health.Unwatched{}).want("watched again, and that is all there was", health.Ignore)
}

// A fault that keeps coming back is held longer each time, up to a bound; after a quiet time it
// begins anew.
func TestFlapping(t *testing.T) {
	s := newStory(t)
	var holds []time.Duration
	for range 10 {
		s.after(time.Second).see(xid(74))
		down := s.now
		for s.severity(nil) > health.Ignore {
			s.after(time.Second).see(well())
		}
		holds = append(holds, s.now.Sub(down))
	}
	want := []time.Duration{hold, 2 * hold, 4 * hold, 8 * hold, 16 * hold, 32 * hold, 64 * hold, time.Hour, time.Hour, time.Hour}
	if diff := cmp.Diff(want, holds); diff != "" {
		t.Errorf("hold-downs (-want +got):\n%s", diff)
	}
	s.after(s.rules.Timing.Memory+time.Second).see(xid(74)).after(time.Second).see(well()).after(hold).want("after a quiet time", health.Ignore)
	if again := s.record.Past[0].Again; again != 0 {
		t.Errorf("it counts as come back %d times", again)
	}
}

func TestPartitions(t *testing.T) {
	here, there := health.Place{Profile: 19, Start: 0, Size: 1}, health.Place{Profile: 19, Start: 1, Size: 1}
	s := newStory(t).see(health.Error{Code: 94, Place: &here})
	check := func(what string, whole, atHere, atThere health.Severity) {
		t.Helper()
		if got := [3]health.Severity{s.severity(nil), s.severity(&here), s.severity(&there)}; got != [3]health.Severity{whole, atHere, atThere} {
			t.Errorf("%s: the GPU, the instance and another: %v", what, got)
		}
	}
	check("of an instance", health.Ignore, health.Avoid, health.Ignore)
	s.after(time.Second).see(health.Instances{here, there})
	check("it is there", health.Ignore, health.Avoid, health.Ignore)
	s.see(health.Instances{there})
	check("it is gone", health.Ignore, health.Ignore, health.Ignore)
	s.see(health.Error{Code: 79, Place: &here})
	check("of the GPU, whatever instance the driver names", health.Evict, health.Evict, health.Evict)
	if reason := s.record.Verdict(&there, s.rules.Timing).Reason(); reason != "XID79" {
		t.Error(reason)
	}
}

// What was recorded under another table counts as this one says.
func TestReclassified(t *testing.T) {
	s := newStory(t).see(xid(79), xid(13), health.Look{Action: action(1)})
	table, err := s.rules.Table.Override([]byte("xids:\n- {codes: [79], severity: ignore}\n- {codes: [13], severity: avoid}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := health.Reclassified(s.record, table)
	var words []string
	for _, f := range got.Faults {
		words = append(words, f.String()+" "+f.Severity.String())
	}
	if diff := cmp.Diff([]string{"XID 13 avoid", "recovery action reset avoid"}, sorted(words)); diff != "" {
		t.Error(diff)
	}
}

func TestRecordInJSON(t *testing.T) {
	s := newStory(t).see(xid(79), health.Error{Code: 94, Place: &health.Place{Profile: 5, Start: 4, Size: 4}}, health.Look{Action: action(4)})
	s.after(time.Hour)
	text, err := json.Marshal(s.record)
	if err != nil {
		t.Fatal(err)
	}
	var back health.Record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.record, back); diff != "" {
		t.Error(diff)
	}
	if back.Empty() || !(health.Record{}).Empty() {
		t.Error("Empty is wrong")
	}
}

func BenchmarkStep(b *testing.B) {
	s := newStory(b).see(xid(79), xid(13), health.Look{Action: action(1)})
	for b.Loop() {
		s.record = health.Step(s.record, well(), s.rules, s.now)
	}
}

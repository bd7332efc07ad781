package health_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/health"
)

func sorted(words []string) []string { return slices.Sorted(slices.Values(words)) }

func places() []health.Place {
	return []health.Place{{Profile: 19, Start: 0, Size: 1}, {Profile: 19, Start: 1, Size: 1}, {Profile: 9, Start: 4, Size: 4}}
}

func anError() *rapid.Generator[health.Error] {
	return rapid.Custom(func(t *rapid.T) health.Error {
		e := health.Error{Code: rapid.SampledFrom([]int{13, 31, 63, 74, 79, 94, 95, 154, 4711}).Draw(t, "xid")}
		if rapid.Bool().Draw(t, "of an instance") {
			e.Place = new(rapid.SampledFrom(places()).Draw(t, "place"))
		}
		return e
	})
}

func aLook() *rapid.Generator[health.Look] {
	return rapid.Custom(func(t *rapid.T) health.Look {
		l := health.Look{
			Reach: rapid.SampledFrom([]health.Reach{health.Answers, health.Answers, health.Fails, health.Gone, health.Hangs}).Draw(t, "reach"),
			Action: health.Action{
				Supported: rapid.Bool().Draw(t, "supported"), Read: rapid.Bool().Draw(t, "read"), Value: rapid.IntRange(0, 9).Draw(t, "action"),
			},
			On: rapid.SliceOfN(rapid.SampledFrom([]health.Condition{
				{Kind: health.Memory, Code: "remap-failed"}, {Kind: health.Memory, Code: "remap-pending"}, {Kind: health.Fabric, Code: "in-progress"},
			}), 0, 3).Draw(t, "on"),
		}
		if rapid.Bool().Draw(t, "blind") {
			l.Blind = []health.Kind{health.Memory}
		}
		return l
	})
}

func anObservation() *rapid.Generator[health.Observation] {
	return rapid.OneOf(
		rapid.Map(anError(), func(e health.Error) health.Observation { return e }),
		rapid.Map(aLook(), func(l health.Look) health.Observation { return l }),
		rapid.Map(rapid.Bool(), func(yes bool) health.Observation { return health.Unwatched{Yes: yes} }),
		rapid.Map(rapid.SliceOfDistinct(rapid.SampledFrom(places()), func(p health.Place) health.Place { return p }),
			func(p []health.Place) health.Observation { return health.Instances(p) }),
	)
}

// anySick is a record with a past.
func anySick(t *rapid.T, r health.Rules) (health.Record, time.Time) {
	record, now := health.Record{}, begin()
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
		record = health.Step(record, anObservation().Draw(t, "observation"), r, now)
	}
	return record, now
}

// No error that the driver reports, harmless or not, makes any device better.
func TestErrorsNeverHeal(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, now := anySick(t, r)
		after := health.Step(record, anError().Draw(t, "error"), r, now)
		for _, place := range append([]*health.Place{nil}, pointers(places())...) {
			was, is := record.Verdict(place, r.Timing).Severity(), after.Verdict(place, r.Timing).Severity()
			if is < was {
				t.Errorf("from %v to %v", was, is)
			}
		}
	})
}

func pointers(in []health.Place) (out []*health.Place) {
	for _, p := range in {
		out = append(out, &p)
	}
	return out
}

// Whatever a GPU has, all its partitions have, also those that nobody has heard of yet.
func TestParentsCoverChildren(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, _ := anySick(t, r)
		whole := record.Verdict(nil, r.Timing)
		for _, place := range append(pointers(places()), &health.Place{Profile: 14, Start: 6, Size: 1}) {
			part := record.Verdict(place, r.Timing)
			if part.Severity() < whole.Severity() || len(part.Faults) < len(whole.Faults) {
				t.Errorf("the GPU has %+v, its partition %+v", whole, part)
			}
		}
	})
}

// A fault of a partition is nothing to its parent and its siblings.
func TestInstanceFaultsStayThere(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, now := anySick(t, r)
		e := anError().Filter(func(e health.Error) bool { return e.Place != nil && !r.Table.XID(e.Code).Whole }).Draw(t, "error")
		after := health.Step(record, e, r, now)
		before := health.Pass(record, r, now)
		for _, place := range append([]*health.Place{nil}, pointers(places())...) {
			if place != nil && *place == *e.Place {
				continue
			}
			if diff := cmp.Diff(before.Verdict(place, r.Timing).Faults, after.Verdict(place, r.Timing).Faults); diff != "" {
				t.Errorf("an error of %+v changed %+v: %s", e.Place, place, diff)
			}
		}
	})
}

// What keeps work away goes only when the GPU has answered since, and neither needs a recovery
// nor leaves open whether it does.
func TestNothingEndsUnseen(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, now := anySick(t, r)
		var bad []health.Observation
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			l := aLook().Draw(t, "look")
			if l.Reach == health.Answers && (!l.Action.Supported || l.Action.Read && l.Action.Value == health.ActionNone) {
				l.Reach = health.Fails
			}
			bad = append(bad, l)
		}
		record = health.Step(record, xidOf(79), r, now)
		for _, o := range bad {
			now = now.Add(time.Hour)
			record = health.Step(record, o, r, now)
			if s := record.Verdict(nil, r.Timing).Severity(); s != health.Evict {
				t.Fatalf("after %+v the severity is %v", o, s)
			}
		}
	})
}

func xidOf(code int) health.Observation { return health.Error{Code: code} }

// A GPU that stays well is well in the end, whatever it had, and steps do not change what they
// are given.
func TestEverythingEnds(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, now := anySick(t, r)
		was := health.Pass(record, r, now)
		end := health.Step(record, health.Unwatched{}, r, now)
		for range 3 {
			now = now.Add(r.Timing.MaxHold)
			end = health.Step(end, health.Look{Action: health.Action{Supported: true, Read: true}}, r, now)
		}
		if end.Verdict(nil, r.Timing).Severity() != health.Ignore || len(end.Faults) != 0 {
			t.Errorf("left: %+v", end.Faults)
		}
		if diff := cmp.Diff(was, record); diff != "" {
			t.Errorf("the record that was given has changed: %s", diff)
		}
	})
}

// The verdict is that of the gravest fault, which comes first, and Next is when it may change.
func TestVerdict(t *testing.T) {
	r := rules(t)
	rapid.Check(t, func(t *rapid.T) {
		record, now := anySick(t, r)
		v := record.Verdict(nil, r.Timing)
		for _, f := range v.Faults {
			if f.Severity > v.Severity() {
				t.Errorf("%v is graver than the verdict", f)
			}
		}
		if unhealthy := v.Status() == health.Unhealthy; unhealthy != (v.Severity() >= health.Avoid) {
			t.Errorf("status %v with severity %v", v.Status(), v.Severity())
		}
		if text := v.Message(); len(text) > 1024 || (text == "") != (len(v.Faults) == 0) {
			t.Errorf("message of %d bytes for %d faults", len(text), len(v.Faults))
		}
		next := record.Next(r.Timing)
		if next.IsZero() {
			next = now.Add(1000 * time.Hour)
		}
		quiet := health.Pass(record, r, next.Add(-time.Nanosecond))
		if diff := cmp.Diff(record.Faults, quiet.Faults); next.After(now) && diff != "" {
			t.Errorf("it changed before %v: %s", next, diff)
		}
	})
}

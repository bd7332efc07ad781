package reconcile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

func record(uid types.UID, state journal.State) *journal.Record {
	return &journal.Record{Namespace: "ns", Name: "c-" + string(uid), UID: uid, State: state}
}

func TestDecide(t *testing.T) {
	now := time.Now()
	hang := errors.New("the driver hangs")
	for name, c := range map[string]struct {
		standing reconcile.Standing
		since    time.Duration // ago; negative for not seen before
		grace    time.Duration
		use      reconcile.Use
		want     reconcile.Action
		says     string
	}{
		"no answer":                    {reconcile.Unknown, time.Hour, 0, reconcile.Use{}, reconcile.Keep, "did not answer"},
		"there":                        {reconcile.Current, time.Hour, 0, reconcile.Use{}, reconcile.Keep, "allocated to this node"},
		"there and in use":             {reconcile.Current, time.Hour, 0, reconcile.Use{By: []string{"x"}}, reconcile.Keep, "allocated"},
		"gone just now":                {reconcile.Deleted, -1, time.Minute, reconcile.Use{}, reconcile.Wait, "1m0s more"},
		"gone for half the grace":      {reconcile.Deleted, 30 * time.Second, time.Minute, reconcile.Use{}, reconcile.Wait, "30s more"},
		"gone for the grace":           {reconcile.Deleted, time.Minute, time.Minute, reconcile.Use{}, reconcile.Undo, "does not exist"},
		"gone, no grace":               {reconcile.Deleted, -1, 0, reconcile.Use{}, reconcile.Undo, "does not exist"},
		"another of its name":          {reconcile.Replaced, time.Minute, time.Minute, reconcile.Use{}, reconcile.Undo, "has its name"},
		"released":                     {reconcile.Released, time.Minute, time.Minute, reconcile.Use{}, reconcile.Undo, "not allocated to this node"},
		"gone and in use":              {reconcile.Deleted, time.Hour, time.Minute, reconcile.Use{By: []string{"process 7", "process 3"}}, reconcile.InUse, "by process 3, process 7"},
		"gone, use not known":          {reconcile.Deleted, time.Hour, time.Minute, reconcile.Use{Err: hang}, reconcile.InUse, "not known: the driver hangs"},
		"gone, in use, within a grace": {reconcile.Deleted, time.Second, time.Minute, reconcile.Use{By: []string{"x"}}, reconcile.Wait, "59s more"},
	} {
		for _, state := range []journal.State{journal.StateStarted, journal.StatePrepared} {
			o := reconcile.Observation{
				Records: []*journal.Record{record("u", state)}, Standings: map[types.UID]reconcile.Standing{"u": c.standing},
				Uses: map[types.UID]reconcile.Use{"u": c.use}, Now: now, Grace: c.grace, Since: map[types.UID]time.Time{},
			}
			if c.since >= 0 {
				o.Since["u"] = now.Add(-c.since)
			}
			got := reconcile.Decide(o)
			if len(got) != 1 || got[0].Action != c.want || !strings.Contains(got[0].Reason, c.says) || got[0].Claim.UID != "u" {
				t.Errorf("%s, %s: %+v, want %s saying %q", name, state, got, c.want, c.says)
			}
		}
	}
}

// Whatever is seen: a claim is undone only when the API server said that it is gone, its grace is
// over and surely nobody uses its devices; and every record gets one verdict, in order.
func TestDecideNeverUndoesInDoubt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		o := reconcile.Observation{
			Standings: map[types.UID]reconcile.Standing{}, Since: map[types.UID]time.Time{}, Uses: map[types.UID]reconcile.Use{},
			Now: now, Grace: time.Duration(rapid.IntRange(0, 100).Draw(t, "grace")) * time.Second,
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "records") {
			uid := types.UID(fmt.Sprintf("u%d", i))
			o.Records = append(o.Records, record(uid, journal.StatePrepared))
			if rapid.Bool().Draw(t, "asked") {
				o.Standings[uid] = reconcile.Standing(rapid.IntRange(-1, 6).Draw(t, "standing"))
			}
			if rapid.Bool().Draw(t, "seen") {
				o.Since[uid] = now.Add(-time.Duration(rapid.IntRange(-10, 200).Draw(t, "ago")) * time.Second)
			}
			switch rapid.IntRange(0, 2).Draw(t, "use") {
			case 1:
				o.Uses[uid] = reconcile.Use{By: []string{"p"}}
			case 2:
				o.Uses[uid] = reconcile.Use{Err: errors.New("hangs")}
			}
		}
		verdicts := reconcile.Decide(o)
		if len(verdicts) != len(o.Records) {
			t.Fatalf("%d verdicts on %d records", len(verdicts), len(o.Records))
		}
		for i, v := range verdicts {
			uid := o.Records[i].UID
			if v.Claim.UID != uid {
				t.Fatalf("verdict %d is on %s, not %s", i, v.Claim.UID, uid)
			}
			since, seen := o.Since[uid]
			s := o.Standings[uid]
			gone := s == reconcile.Deleted || s == reconcile.Replaced || s == reconcile.Released
			patient := o.Grace == 0 && !seen || seen && now.Sub(since) >= o.Grace
			idle := o.Uses[uid].Err == nil && len(o.Uses[uid].By) == 0
			if may := gone && patient && idle; (v.Action == reconcile.Undo) != may {
				t.Fatalf("%+v, may be undone %t", v, may)
			}
			if !gone && v.Action != reconcile.Keep {
				t.Fatalf("%+v though it is not gone", v)
			}
		}
	})
}

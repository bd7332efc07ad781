package timeslicing

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (m *machine) expect(t *testing.T, what string, calls ...string) {
	t.Helper()
	if diff := cmp.Diff(calls, m.took()); diff != "" {
		t.Errorf("%s: executed (-want +got):\n%s", what, diff)
	}
}

func TestWithoutAWishNothingIsDone(t *testing.T) {
	steps, err := Handler{}.Steps(claims.Device{Device: board(1)})
	if err != nil || steps != nil {
		t.Errorf("steps %v, %v", steps, err)
	}
	edits, err := Handler{}.Edits(wish{claim: "a", gpu: 1, interval: "Long"}.device(), nil)
	if err != nil || len(edits.Env)+len(edits.Nodes)+len(edits.Mounts)+len(edits.Hooks) > 0 {
		t.Errorf("containers see %+v, %v", edits, err)
	}
}

func TestFirstInSetsLastOutResets(t *testing.T) {
	m := newMachine(t)
	a := wish{claim: "a", share: "1", gpu: 1, interval: "Long"}
	b := wish{claim: "b", share: "2", gpu: 1, interval: "Long"}
	ok(t, m.prepare(t, a))
	m.expect(t, "the first", "GPU-1 Long")
	ok(t, m.prepare(t, b))
	m.expect(t, "the second")
	ok(t, m.prepare(t, wish{claim: "c", gpu: 2, interval: "Short"}))
	m.expect(t, "another GPU", "GPU-2 Short")
	ok(t, m.unprepare(t, a))
	m.expect(t, "one leaves")
	ok(t, m.unprepare(t, a))
	m.expect(t, "and again")
	ok(t, m.unprepare(t, b))
	m.expect(t, "the last leaves", "GPU-1 Default")
	ok(t, m.unprepare(t, b))
	m.expect(t, "undone twice")
}

func TestTwoSharesOfOneClaim(t *testing.T) {
	m := newMachine(t)
	a, b := wish{claim: "a", share: "1", gpu: 1, interval: "Long"}, wish{claim: "a", share: "2", gpu: 1, interval: "Long"}
	ok(t, m.prepare(t, a))
	ok(t, m.prepare(t, b))
	m.expect(t, "both", "GPU-1 Long")
	_, err := m.executor().Do(context.Background(), b.params(t))
	ok(t, err)
	ok(t, m.executor().Undo(context.Background(), b.params(t), nil))
	m.expect(t, "one of them")
	ok(t, m.unprepare(t, a))
	m.expect(t, "the other", "GPU-1 Default")
}

func TestAnotherWishIsRefusedByName(t *testing.T) {
	m := newMachine(t)
	ok(t, m.prepare(t, wish{claim: "a", share: "1", gpu: 1, interval: "Long"}))
	err := m.prepare(t, wish{claim: "b", share: "2", gpu: 1, interval: "Short"})
	differs := new(DiffersError)
	if !errors.As(err, &differs) || differs.Holder != (claims.Ref{Namespace: "team", Name: "claim-a", UID: "a"}) {
		t.Fatalf("refused: %v", err)
	}
	for _, part := range []string{`"Short"`, `"Long"`, "team/claim-a", "interval"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	m.expect(t, "the refused", "GPU-1 Long")
	if have := m.interval(1); have != "Long" {
		t.Errorf("the GPU has %s", have)
	}
}

func TestAfterARebootTheFirstSetsAgain(t *testing.T) {
	m := newMachine(t)
	a, b := wish{claim: "a", share: "1", gpu: 1, interval: "Long"}, wish{claim: "b", share: "2", gpu: 1, interval: "Long"}
	ok(t, m.prepare(t, a))
	ok(t, m.prepare(t, b))
	m.reboot()
	m.took()
	ok(t, m.prepare(t, b))
	m.expect(t, "prepared again", "GPU-1 Long")
	ok(t, m.prepare(t, a))
	m.expect(t, "the other too")
	m.reboot()
	m.took()
	ok(t, m.unprepare(t, a))
	ok(t, m.unprepare(t, b))
	m.expect(t, "a reboot puts everything back")
}

func TestACrashBetweenEntryAndDeed(t *testing.T) {
	m := newMachine(t)
	a, b := wish{claim: "a", share: "1", gpu: 1, interval: "Long"}, wish{claim: "b", share: "2", gpu: 1, interval: "Long"}
	m.known["a"] = true
	m.fail = errors.New("killed")
	if _, err := m.executor().Do(context.Background(), a.params(t)); err == nil {
		t.Fatal("done")
	}
	m.fail = nil
	m.took()
	ok(t, m.prepare(t, b))
	m.expect(t, "nobody knows that it was set", "GPU-1 Long")
}

func TestWhatIsLeftOverDoesNotCount(t *testing.T) {
	m := newMachine(t)
	ok(t, m.prepare(t, wish{claim: "a", gpu: 1, interval: "Long"}))
	delete(m.known, "a") // its record was set aside
	torn := filepath.Join(m.dir, board(1).Identity().PCI.Label(), "b")
	ok(t, os.WriteFile(torn, nil, 0o600))
	m.known["b"] = true
	m.took()
	ok(t, m.prepare(t, wish{claim: "c", gpu: 1, interval: "Short"}))
	m.expect(t, "left over", "GPU-1 Short")
	if _, err := os.Stat(torn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the torn entry stays: %v", err)
	}
}

func TestWhatCannotBePutBackDoesNotHoldTheClaim(t *testing.T) {
	for name, tt := range map[string]struct {
		fail error
		// holds: the claim cannot be undone; later: the interval can be put back afterwards.
		holds, later bool
	}{
		"not supported":  {ErrNotSupported, false, false},
		"lost":           {ErrGone, false, true},
		"driver removed": {ErrNoTool, false, true},
		"no permission":  {errors.New("exit status 4"), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			w := wish{claim: "a", gpu: 1, interval: "Long"}
			ok(t, m.prepare(t, w))
			m.fail = tt.fail
			if err := m.unprepare(t, w); (err != nil) != tt.holds {
				t.Fatalf("undone: %v", err)
			}
			owner := Owner{Executor: m.executor()}
			things, err := owner.Things(t.Context())
			ok(t, err)
			if !tt.holds && tt.later {
				if err := owner.Remove(t.Context(), things[0]); !errors.Is(err, reconcile.ErrLater) {
					t.Errorf("while the GPU is gone: %v", err)
				}
			}
			m.fail = nil
			m.took()
			for _, thing := range things {
				ok(t, owner.Remove(t.Context(), thing))
			}
			if tt.later {
				m.expect(t, "later", "GPU-1 Default")
			} else {
				m.expect(t, "later")
			}
		})
	}
}

func TestAGPUWithoutTimeSlices(t *testing.T) {
	m := newMachine(t)
	m.fail = ErrNotSupported
	if err := m.prepare(t, wish{claim: "a", gpu: 1, interval: "Long"}); !errors.Is(err, ErrNotSupported) {
		t.Errorf("Long: %v", err)
	}
	ok(t, m.prepare(t, wish{claim: "b", gpu: 1, interval: "Default"}))
	ok(t, m.unprepare(t, wish{claim: "b", gpu: 1, interval: "Default"}))
}

func TestStrangeParameters(t *testing.T) {
	m := newMachine(t)
	if _, err := m.executor().Do(context.Background(), []byte(`[]`)); err == nil {
		t.Error("done")
	}
	if err := m.executor().Undo(context.Background(), []byte(`[]`), nil); err == nil {
		t.Error("undone")
	}
}

func TestADirectoryThatCannotBeUsed(t *testing.T) {
	m := newMachine(t)
	m.dir = filepath.Join(m.dir, "file")
	ok(t, os.WriteFile(m.dir, nil, 0o600))
	w := wish{claim: "a", gpu: 1, interval: "Long"}
	if _, err := m.executor().Do(context.Background(), w.params(t)); err == nil {
		t.Error("done")
	}
	if err := m.executor().Undo(context.Background(), w.params(t), nil); err == nil {
		t.Error("undone")
	}
	m.expect(t, "nothing is set that nobody would put back")
}

// Whatever comes and goes, dies in between or reboots: a GPU has the interval that its claims
// asked for, and the default when there are none.
func TestModel(t *testing.T) {
	claimIDs := []types.UID{"a", "b", "c", "d"}
	intervals := []configapi.TimeSlice{"Default", "Short", "Long"}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t)
		live := map[types.UID]wish{}
		draw := func() wish {
			claim := rapid.SampledFrom(claimIDs).Draw(rt, "claim")
			return wish{claim: claim, share: "s-" + claim, gpu: board(rapid.IntRange(1, 2).Draw(rt, "gpu")), interval: rapid.SampledFrom(intervals).Draw(rt, "interval")}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"prepare": func(rt *rapid.T) {
				w := draw()
				if old, again := live[w.claim]; again {
					w = old
				}
				held := slices.ContainsFunc(claimIDs, func(id types.UID) bool {
					other, is := live[id]
					return is && id != w.claim && other.gpu == w.gpu && other.interval != w.interval
				})
				err := m.prepare(t, w)
				if (err != nil) != held {
					rt.Fatalf("%+v beside %v: %v", w, live, err)
				}
				if err == nil {
					live[w.claim] = w
				}
			},
			"unprepare": func(*rapid.T) {
				w := draw()
				if old, is := live[w.claim]; is {
					w = old
				}
				ok(t, m.unprepare(t, w))
				delete(live, w.claim)
			},
			"failed after the deed": func(*rapid.T) {
				w := draw()
				if _, is := live[w.claim]; is {
					return
				}
				m.fail, m.late = errors.New("killed"), true
				m.known[w.claim] = true
				_, _ = m.executor().Do(context.Background(), w.params(t))
				m.fail, m.late = nil, false
				ok(t, m.unprepare(t, w))
			},
			"reboot": func(*rapid.T) {
				m.reboot()
				for _, id := range claimIDs {
					if w, is := live[id]; is {
						ok(t, m.prepare(t, w))
					}
				}
			},
			"": func(rt *rapid.T) {
				want := map[board]configapi.TimeSlice{1: "Default", 2: "Default"}
				for _, w := range live {
					want[w.gpu] = w.interval
				}
				for gpu, interval := range want {
					if have := m.interval(gpu); have != interval {
						rt.Fatalf("GPU %d has %s, want %s for %v", gpu, have, interval, live)
					}
				}
			},
		})
	})
}

// What is in an entry's file is either an entry or nothing.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"pci":"0000:1a:00.0","gpuUUID":"GPU-1","interval":"Long","namespace":"n","name":"c","uid":"u","boot":"b","set":true}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if entry := parse(data); entry != nil && (entry.UID == "" || entry.Interval == "") {
			t.Fatalf("%q gives %+v", data, entry)
		}
	})
}

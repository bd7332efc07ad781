package kernellog

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSieve(t *testing.T) {
	gpu, other := at("0000:01:00.0"), at("0000:02:00.0")
	begin := time.Unix(1000, 0)
	second := func(n float64) time.Time { return begin.Add(time.Duration(n * float64(time.Second))) }
	for name, test := range map[string]struct {
		do   func(*sieve)
		want []Message
	}{
		"NVML first":        {func(s *sieve) { s.tells(gpu, 79, second(0)); s.logged(Message{gpu, 79, -1}, second(1)) }, nil},
		"the log first":     {func(s *sieve) { s.logged(Message{gpu, 79, -1}, second(0)); s.tells(gpu, 79, second(1)) }, nil},
		"the log alone":     {func(s *sieve) { s.logged(Message{gpu, 79, -1}, second(0)) }, []Message{{gpu, 79, -1}}},
		"the log, repeated": {func(s *sieve) { s.logged(Message{gpu, 79, 3}, second(0)); s.logged(Message{gpu, 79, 3}, second(1)) }, []Message{{gpu, 79, 3}}},
		"of two instances":  {func(s *sieve) { s.logged(Message{gpu, 94, 3}, second(0)); s.logged(Message{gpu, 94, 4}, second(1)) }, []Message{{gpu, 94, -1}}},
		"long after NVML":   {func(s *sieve) { s.tells(gpu, 79, second(0)); s.logged(Message{gpu, 79, -1}, second(3)) }, []Message{{gpu, 79, -1}}},
		"NVML told of another": {
			func(s *sieve) {
				s.logged(Message{gpu, 79, -1}, second(0))
				s.logged(Message{other, 79, -1}, second(1))
				s.tells(other, 13, second(1))
				s.tells(gpu, 13, second(1))
			}, []Message{{gpu, 79, -1}, {other, 79, -1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSieve(2 * time.Second)
			test.do(s)
			if got := s.due(second(1.9)); len(got) > 0 {
				t.Errorf("too early: %+v", got)
			}
			if due := s.next(); due.IsZero() != (test.want == nil) {
				t.Errorf("due next at %v", due)
			}
			got := s.due(second(10))
			if len(got) != len(test.want) || len(got) > 0 && !cmp.Equal(test.want, got) {
				t.Errorf("told %+v, want %+v", got, test.want)
			}
			if again := s.due(second(20)); len(again) > 0 || !s.next().IsZero() {
				t.Errorf("told again: %+v", again)
			}
		})
	}
}

// Whatever comes in which order: an error of which NVML never told is told once for each time that
// it came anew; one of which NVML told within the grace is not; and memory is bounded.
func TestSieveLosesNothing(t *testing.T) {
	gpu := at("0000:01:00.0")
	rapid.Check(t, func(t *rapid.T) {
		s := newSieve(2 * time.Second)
		now := time.Unix(1000, 0)
		nvml, log := map[int]bool{}, map[int]bool{}
		told := map[int]int{}
		take := func() {
			for _, m := range s.due(now) {
				told[m.XID]++
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			xid := rapid.IntRange(1, 2000).Draw(t, "xid")
			if rapid.Bool().Draw(t, "nvml") {
				s.tells(gpu, xid, now)
				nvml[xid] = true
			} else if s.logged(Message{gpu, xid, -1}, now) {
				log[xid] = true
			}
			take()
			if len(s.told) > most || len(s.waiting) > most {
				t.Fatalf("%d and %d are remembered", len(s.told), len(s.waiting))
			}
		}
		now = now.Add(time.Hour)
		take()
		for xid := range log {
			if told[xid] == 0 && !nvml[xid] {
				t.Errorf("XID %d is lost", xid)
			}
		}
		for xid := range told {
			if !log[xid] {
				t.Errorf("XID %d was never logged", xid)
			}
		}
	})
}

func TestSieveIsBounded(t *testing.T) {
	s := newSieve(time.Hour)
	gpu, now := at("0000:01:00.0"), time.Unix(1000, 0)
	for xid := range 2 * most {
		s.tells(gpu, 100000+xid, now)
		if room := s.logged(Message{gpu, xid + 1, -1}, now); room != (xid < most) {
			t.Fatalf("XID %d of %d: room is %t", xid, most, room)
		}
	}
	if len(s.told) != most || len(s.waiting) != most {
		t.Errorf("%d and %d are remembered", len(s.told), len(s.waiting))
	}
}

package vitals

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// registry answers for each GPU, after a time.
type registry struct {
	mu    sync.Mutex
	errs  map[inventory.GPUID]error
	takes map[inventory.GPUID]time.Duration
	asked map[inventory.GPUID]int
}

func (r *registry) register(_ context.Context, gpu inventory.GPUID) error {
	r.mu.Lock()
	r.asked[gpu]++
	err := r.errs[gpu]
	r.mu.Unlock()
	time.Sleep(r.takes[gpu])
	return err
}

func TestRoll(t *testing.T) {
	quick, slow, lost, silent := inventory.GPUID{UUID: "quick"}, inventory.GPUID{UUID: "slow"}, inventory.GPUID{UUID: "lost"}, inventory.GPUID{UUID: "silent"}
	synctest.Test(t, func(t *testing.T) {
		r := &registry{
			errs:  map[inventory.GPUID]error{lost: inventory.ErrLost, silent: inventory.ErrNotSupported},
			takes: map[inventory.GPUID]time.Duration{slow: time.Minute},
			asked: map[inventory.GPUID]int{},
		}
		roll := newRoll([]inventory.GPUID{quick, slow, lost, silent}, 10*time.Second, r.register)
		wants := func(when string, changed bool, deaf map[inventory.GPUID]error) {
			t.Helper()
			if got := roll.changed(); got != changed {
				t.Errorf("%s: changed is %t", when, got)
			}
			got := roll.deaf()
			if len(got) != len(deaf) {
				t.Errorf("%s: deaf are %v, want %v", when, got, deaf)
			}
			for gpu, err := range deaf {
				if !errors.Is(got[gpu], err) {
					t.Errorf("%s: %s is deaf because of %v, want %v", when, gpu.UUID, got[gpu], err)
				}
			}
		}
		begun := time.Now()
		roll.call(t.Context())
		if waited := time.Since(begun); waited != answerLimit {
			t.Errorf("waited for %s", waited)
		}
		wants("at first", true, map[inventory.GPUID]error{lost: inventory.ErrLost, silent: inventory.ErrNotSupported})
		roll.again(t.Context())
		wants("at once again", false, map[inventory.GPUID]error{lost: inventory.ErrLost, silent: inventory.ErrNotSupported})
		r.mu.Lock()
		delete(r.errs, lost)
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		roll.again(t.Context())
		synctest.Wait()
		roll.again(t.Context())
		wants("after the pause", true, map[inventory.GPUID]error{slow: errUnanswered, silent: inventory.ErrNotSupported})
		time.Sleep(time.Minute)
		synctest.Wait()
		roll.again(t.Context())
		wants("in the end", true, map[inventory.GPUID]error{silent: inventory.ErrNotSupported})
		r.mu.Lock()
		defer r.mu.Unlock()
		for gpu, times := range map[inventory.GPUID]int{quick: 1, slow: 1, lost: 2, silent: 1} {
			if r.asked[gpu] != times {
				t.Errorf("%s was asked %d times, want %d", gpu.UUID, r.asked[gpu], times)
			}
		}
	})
}

// Nobody waits who is told to end.
func TestRollEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		gpu := inventory.GPUID{UUID: "one"}
		roll := newRoll([]inventory.GPUID{gpu}, time.Second, func(context.Context, inventory.GPUID) error {
			time.Sleep(time.Hour)
			return nil
		})
		begun := time.Now()
		roll.call(ctx)
		if waited := time.Since(begun); waited != time.Millisecond {
			t.Errorf("waited for %s", waited)
		}
		time.Sleep(time.Second)
		if deaf := roll.deaf(); deaf[gpu] == nil {
			t.Error("it passes as registered")
		}
		// What was asked ends with it.
		time.Sleep(time.Hour)
	})
}

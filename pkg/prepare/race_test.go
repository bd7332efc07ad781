package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
)

// A pod was deleted by force: the next claim's prepare comes before the old one's unprepare.
func TestPrepareWaitsForTheOldClaim(t *testing.T) {
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			n := newNode(t)
			patient := func(c *Config) { c.HolderWait = time.Minute }
			a := n.start(t, patient)
			b := a
			if processes == 2 {
				b = n.start(t, patient)
			}
			prepareOK(t, a, plan("old", gpu(1)))
			done := make(chan error, 1)
			go func() {
				_, err := b.Prepare(t.Context(), plan("new", gpu(1)))
				done <- err
			}()
			// Calls of other claims go on meanwhile, also on that GPU.
			admin := plan("monitor", gpu(1))
			admin.Devices[0].AdminAccess = true
			prepareOK(t, b, admin)
			prepareOK(t, b, plan("other", gpu(2)))
			select {
			case err := <-done:
				t.Fatalf("the device was given away while it is held: %v", err)
			default:
			}
			unprepareOK(t, a, "old")
			must(t, <-done)
			for _, uid := range []types.UID{"new", "monitor", "other"} {
				unprepareOK(t, b, uid)
			}
			n.clean(t)
		})
	}
}

func TestWaitEndsWithTheCaller(t *testing.T) {
	n := newNode(t)
	e := n.start(t, func(c *Config) { c.HolderWait = time.Hour })
	prepareOK(t, e, plan("old", gpu(1)))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := e.Prepare(ctx, plan("new", gpu(1)))
	held := new(HeldError)
	if !errors.As(err, &held) || held.Waited <= 0 {
		t.Error(err)
	}
}

// stuck does its step and then hangs until its context ends.
type stuck struct {
	Executor
	begun chan struct{}
}

func (s stuck) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	if _, err := s.Executor.Do(ctx, params); err != nil {
		return nil, err
	}
	close(s.begun)
	<-ctx.Done()
	return nil, ctx.Err()
}

// meeting does its step when all others have begun theirs.
type meeting struct {
	Executor
	others *sync.WaitGroup
}

func (m meeting) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	m.others.Done()
	m.others.Wait()
	return m.Executor.Do(ctx, params)
}

// An unprepare ends the prepare of the same claim that is running, and leaves nothing.
func TestUnprepareDuringPrepare(t *testing.T) {
	n := newNode(t)
	begun := make(chan struct{})
	e := n.start(t, func(c *Config) { c.Executors["wire"] = stuck{c.Executors["wire"], begun} })
	done := make(chan error, 1)
	go func() {
		_, err := e.Prepare(t.Context(), plan("c1", part(1, "a")))
		done <- err
	}()
	<-begun
	unprepareOK(t, e, "c1")
	if err := <-done; !errors.Is(err, ErrSuperseded) {
		t.Errorf("the prepare that was running: %v", err)
	}
	n.clean(t)
}

// A prepare whose caller has given up while it waited must not begin after the unprepare.
func TestLatePrepareDoesNothing(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Prepare(ctx, plan("c1", gpu(1))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// One that waits for the claim's lock in this process is ended by the unprepare.
	unlock, err := e.Locks.Lock(t.Context(), claimKey("c1"))
	must(t, err)
	late := make(chan error, 1)
	go func() {
		_, err := e.Prepare(t.Context(), plan("c1", gpu(1)))
		late <- err
	}()
	for waiting := 0; waiting == 0; runtime.Gosched() {
		e.running.mu.Lock()
		waiting = len(e.running.calls["c1"])
		e.running.mu.Unlock()
	}
	done := make(chan error, 1)
	go func() { done <- e.Unprepare(t.Context(), claimOf("c1")) }()
	if err := <-late; !errors.Is(err, ErrSuperseded) {
		t.Errorf("the late prepare: %v", err)
	}
	unlock()
	must(t, <-done)
	n.clean(t)
}

// Many callers in two processes: no GPU ever has two owners, and nothing is left.
func TestTwoProcessesUnderLoad(t *testing.T) {
	n := newNode(t)
	const gpus = 3
	var owners [gpus]atomic.Int32
	var successes atomic.Int32
	var wg sync.WaitGroup
	for process := range 2 {
		e := n.start(t, func(c *Config) { c.HolderWait = 200 * time.Millisecond })
		for caller := range 4 {
			wg.Go(func() {
				for i := range 6 {
					uid := types.UID(fmt.Sprintf("c-%d-%d-%d", process, caller, i))
					g := (caller + i) % gpus
					_, err := e.Prepare(t.Context(), plan(uid, gpu(g)))
					held := new(HeldError)
					switch {
					case err == nil:
						if got := owners[g].Add(1); got != 1 {
							t.Errorf("GPU %d has %d owners", g, got)
						}
						successes.Add(1)
						owners[g].Add(-1)
					case !errors.As(err, &held):
						t.Error(err)
					}
					// The kubelet unprepares failed claims as well.
					if err := e.Unprepare(t.Context(), claims.Ref{UID: uid}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if successes.Load() == 0 {
		t.Error("nobody got a GPU")
	}
	n.clean(t)
}

// The kubelet repeats calls: all get the same answer, and the steps are done once.
func TestDuplicateCalls(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := e.Prepare(t.Context(), plan("c1", part(1, "a"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if did := strings.Join(n.hw.calls, ","); did != "do carve gpu-1-a,do wire gpu-1-a" {
		t.Error(did)
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

// Steps on two GPUs of one claim run at the same time.
func TestGPUsInParallel(t *testing.T) {
	n := newNode(t)
	var meet sync.WaitGroup
	meet.Add(2)
	e := n.start(t, func(c *Config) { c.Executors["carve"] = meeting{c.Executors["carve"], &meet} })
	prepareOK(t, e, plan("c1", part(1, "a"), part(2, "a")))
	unprepareOK(t, e, "c1")
	n.clean(t)
}

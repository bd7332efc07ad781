package process_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// owners knows who has which GPU from the callers' view.
type owners struct {
	mu  sync.Mutex
	who map[int]string
}

// take notes an owner; it fails where there is one.
func (o *owners) take(name string, gpus ...int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range gpus {
		if other, ok := o.who[g]; ok {
			return fmt.Errorf("GPU %d is %s's and was given to %s", g, other, name)
		}
	}
	for _, g := range gpus {
		o.who[g] = name
	}
	return nil
}

func (o *owners) leave(gpus ...int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range gpus {
		delete(o.who, g)
	}
}

// Callers fight for few GPUs while the process is killed at random moments: a GPU never has two
// owners, every call ends well after some tries, and nothing stays.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("holder-wait", "50ms"))
	owners := &owners{who: map[int]string{}}
	end := make(chan struct{})
	cycles := make([]int, 6)
	var wg sync.WaitGroup
	for i := range cycles {
		wg.Go(func() {
			for ; !closed(end); cycles[i]++ {
				gpus := rand.Perm(4)[:1+rand.IntN(2)]
				claim := b.Allocated(fmt.Sprintf("c%d-%d", i, cycles[i]), gpus)
				fight(t, b, owners, claim, gpus, end)
			}
		})
	}
	const kills = 12
	for range kills {
		time.Sleep(rand.N(300 * time.Millisecond)) // a random moment, not a wait for something
		p.Kill()
		p = b.Start(process.Flag("holder-wait", "50ms"))
	}
	close(end)
	wg.Wait()
	cleanButTemporary(t, b)
	t.Logf("%d kills, %v cycles", kills, cycles)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fight prepares until it works or the fight is over, and unprepares until that works.
func fight(t *testing.T, b *process.Bed, owners *owners, claim kubelet.Claim, gpus []int, end <-chan struct{}) {
	answer, err := b.Prepare(claim)
	for err != nil && !closed(end) {
		answer, err = b.Prepare(claim)
	}
	if err == nil {
		if err := b.CheckPrepared(claim, answer, gpus...); err != nil {
			t.Error(err)
		}
		if err := owners.take(claim.Name, gpus...); err != nil {
			t.Error(err)
		}
		// Time for others to be given the same, and for a kill. The answer may be an error then.
		_, _ = b.Prepare(claim)
		owners.leave(gpus...)
	}
	// As the kubelet does, also for a claim that was never prepared.
	deadline := time.Now().Add(time.Minute)
	for err = b.Unprepare(claim); err != nil; err = b.Unprepare(claim) {
		if time.Now().After(deadline) {
			t.Errorf("unprepare of %s: %v", claim.Name, err)
			return
		}
	}
}

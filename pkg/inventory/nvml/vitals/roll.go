package vitals

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// answerLimit is how long all wait for those that are slow.
const answerLimit = time.Second

// errUnanswered is of a GPU whose registration has not come back yet.
var errUnanswered = errors.New("its driver has not answered yet")

// roll is the account of which GPUs are registered. All are asked at once, and nobody waits long
// for one that hangs.
type roll struct {
	gpus     []inventory.GPUID
	pause    time.Duration
	register func(context.Context, inventory.GPUID) error
	answers  chan answer
	// errs is why each GPU is not registered, of those that are not; asked is when those that are
	// asked again were last asked, and pending those that have not answered since.
	errs    map[inventory.GPUID]error
	asked   map[inventory.GPUID]time.Time
	pending map[inventory.GPUID]bool
	told    map[inventory.GPUID]error
}

type answer struct {
	gpu inventory.GPUID
	err error
}

func newRoll(gpus []inventory.GPUID, pause time.Duration, register func(context.Context, inventory.GPUID) error) *roll {
	return &roll{
		gpus: gpus, pause: pause, register: register,
		// Each GPU has at most one answer under way.
		answers: make(chan answer, len(gpus)),
		errs:    map[inventory.GPUID]error{}, asked: map[inventory.GPUID]time.Time{}, pending: map[inventory.GPUID]bool{},
	}
}

// call asks all GPUs and waits for those that answer soon.
func (r *roll) call(ctx context.Context) {
	for _, gpu := range r.gpus {
		r.errs[gpu] = errUnanswered
		r.ask(ctx, gpu)
	}
	timer := time.NewTimer(answerLimit)
	defer timer.Stop()
	for len(r.pending) > 0 {
		select {
		case a := <-r.answers:
			r.take(a)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (r *roll) ask(ctx context.Context, gpu inventory.GPUID) {
	r.asked[gpu], r.pending[gpu] = time.Now(), true
	go func() { r.answers <- answer{gpu, r.register(ctx, gpu)} }()
}

func (r *roll) take(a answer) {
	delete(r.pending, a.gpu)
	delete(r.errs, a.gpu)
	if a.err != nil {
		r.errs[a.gpu] = a.err
	}
}

// again takes in what was answered, and asks those again that failed long enough ago.
func (r *roll) again(ctx context.Context) {
	for len(r.answers) > 0 {
		r.take(<-r.answers)
	}
	for gpu, err := range r.errs {
		if !r.pending[gpu] && !errors.Is(err, inventory.ErrNotSupported) && time.Since(r.asked[gpu]) >= r.pause {
			r.ask(ctx, gpu)
		}
	}
}

// changed tells whether other GPUs are deaf than when deaf was last called.
func (r *roll) changed() bool {
	return r.told == nil || !maps.EqualFunc(r.told, r.failed(), func(a, b error) bool { return a.Error() == b.Error() })
}

// deaf are the GPUs that are not registered.
func (r *roll) deaf() map[inventory.GPUID]error {
	r.told = r.failed()
	return maps.Clone(r.told)
}

// failed are those of which that is sure: a node that is busy may be slow.
func (r *roll) failed() map[inventory.GPUID]error {
	out := maps.Clone(r.errs)
	maps.DeleteFunc(out, func(gpu inventory.GPUID, err error) bool {
		return errors.Is(err, errUnanswered) && time.Since(r.asked[gpu]) < r.pause
	})
	return out
}

// settled tells whether nothing is left to register.
func (r *roll) settled() bool {
	for _, err := range r.errs {
		if !errors.Is(err, inventory.ErrNotSupported) {
			return false
		}
	}
	return len(r.pending) == 0
}

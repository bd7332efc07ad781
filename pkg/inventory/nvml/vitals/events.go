package vitals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

const (
	// turn is how long one wait for events lasts: so long a session that is recalled is kept. An event
	// ends a wait at once, so a longer one delays nothing; and each wait costs a process that has
	// nothing else to do more than all its readings, since the runtime looks after calls into C for
	// a while before it sleeps.
	turn = 5 * time.Second
	// soon is the turn while GPUs have to be registered yet.
	soon = time.Second
	// about names a new event set to the watchdog, waitsAbout begins the names of those that are waited for.
	about      = "an event set"
	waitsAbout = "the event set "
	// noInstance is NVML's "of no instance".
	noInstance = 0xFFFFFFFF
	// pause keeps a driver that fails at once from being asked without end.
	pause = 5 * time.Second
	// retry is how long a GPU has to be registered, and how long after a failure that is tried again.
	retry = 10 * time.Second
)

// ErrRecalled ends a Watch whose session the library wanted back.
var ErrRecalled = errors.New("the session with the driver is opened anew")

// Event is something that the driver reported.
type Event struct {
	// GPU is what it is about; the zero GPUID where the driver does not say.
	GPU inventory.GPUID
	// XID is the error's number; 0 for what says no more than that the GPU is worth a look.
	XID int
	// Instance is the GPU instance that it names; -1 for none.
	Instance int
}

// Watch waits for what the driver reports of the GPUs until the context or the session ends, and
// tells each event as it comes. Before the first it tells which GPUs it is not registered for, and
// why; inventory.ErrNotSupported for boards that report nothing. The others it tries again for as
// long as it watches: a GPU that is lost may come back. It tells again whenever that has changed.
// It returns ErrRecalled, or why it cannot watch. At the context's end it returns at once, and leaves
// a wait behind that ends with its turn and keeps the session open until then.
func (r Reader) Watch(ctx context.Context, gpus []inventory.GPUID, listening func(deaf map[inventory.GPUID]error), tell func(Event)) error {
	s, giveBack, err := r.Lender.Lend(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	if err := s.HungAbout(waitsAbout); err != nil {
		// One more wait would hang as well, and each that hangs takes a thread.
		return err
	}
	e := &ears{session: s, by: map[gonvml.Device]inventory.GPUID{}}
	if err := e.open(ctx); err != nil {
		return err
	}
	defer e.close(context.WithoutCancel(ctx))
	roll := newRoll(gpus, cmp.Or(r.Retry, retry), e.register)
	roll.call(ctx)
	for {
		if roll.changed() {
			listening(roll.deaf())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Recalled:
			return ErrRecalled
		default:
		}
		limit := cmp.Or(r.Turn, turn)
		if !roll.settled() {
			limit = min(limit, soon)
		}
		event, err := e.wait(ctx, limit)
		switch {
		case err != nil:
			return err
		case event != nil:
			tell(*event)
		}
		roll.again(ctx)
	}
}

// ears are an event set.
type ears struct {
	session session.Loan

	mu  sync.Mutex
	set gonvml.EventSet
	// users are the calls that have the set: those that were given up have it still. Who is the last
	// to have it after it was closed frees it.
	users  int
	closed bool
	by     map[gonvml.Device]inventory.GPUID
}

func (e *ears) open(ctx context.Context) error {
	made := make(chan gonvml.EventSet, 1)
	err := e.session.Call(ctx, about, symSetCreate, func(api session.API) session.Return {
		set, ret := api.EventSetCreate()
		made <- set
		return ret
	})
	if err != nil {
		return err
	}
	e.set = <-made
	return nil
}

// with has a call use the set, unless that is closed.
func (e *ears) with(call func(gonvml.EventSet) session.Return) session.Return {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return gonvml.ERROR_UNINITIALIZED
	}
	e.users++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.users--
		last := e.closed && e.users == 0
		e.mu.Unlock()
		if last {
			_ = e.set.Free()
		}
	}()
	return call(e.set)
}

// close frees the set. One that cannot be freed, or that a call still has, goes with the session.
func (e *ears) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	free := e.users == 0
	e.mu.Unlock()
	if !free {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	_ = e.session.Call(ctx, about, symSetFree, func(session.API) session.Return { return e.set.Free() })
}

// wanted are the events that mean something for health.
const wanted = gonvml.EventTypeXidCriticalError | gonvml.EventTypeDoubleBitEccError | gonvml.EventTypeDramRetirementEvent |
	gonvml.EventTypeDramRetirementFailure | gonvml.EventTypeNonFatalPoisonError | gonvml.EventTypeFatalPoisonError |
	gonvml.EventTypeGpuUnavailableError | gonvml.EventTypeGpuRecoveryAction

func (e *ears) register(ctx context.Context, gpu inventory.GPUID) error {
	return e.session.Call(ctx, gpu.PCI.String(), symRegister, func(api session.API) session.Return {
		d, ret := api.DeviceGetHandleByPciBusId(gpu.PCI.String())
		if ret != gonvml.SUCCESS {
			return ret
		}
		types, ret := d.GetSupportedEventTypes()
		switch {
		case ret != gonvml.SUCCESS:
			return ret
		case types&gonvml.EventTypeXidCriticalError == 0:
			return gonvml.ERROR_NOT_SUPPORTED
		}
		// Its events may come before this call is back.
		e.mu.Lock()
		e.by[d] = gpu
		e.mu.Unlock()
		return e.with(func(set gonvml.EventSet) session.Return { return d.RegisterEvents(types&wanted, set) })
	})
}

// wait gives the next event; nil when none came within the limit. At the context's end it is left
// behind: who watches next registers anew, and a wait has a name of its own, so that it stands in
// nobody's way.
func (e *ears) wait(ctx context.Context, limit time.Duration) (*Event, error) {
	type outcome struct {
		data gonvml.EventData
		ret  gonvml.Return
	}
	waited := make(chan outcome, 1)
	err := e.session.Call(ctx, fmt.Sprintf("%s%v", waitsAbout, e.set), symWait, func(session.API) session.Return {
		return e.with(func(set gonvml.EventSet) session.Return {
			data, ret := set.Wait(uint32(limit.Milliseconds()))
			waited <- outcome{data, ret}
			return gonvml.SUCCESS
		})
	})
	if err != nil {
		return nil, err
	}
	switch got := <-waited; got.ret {
	case gonvml.SUCCESS:
		return e.event(got.data), nil
	case gonvml.ERROR_TIMEOUT:
		return nil, nil
	case gonvml.ERROR_GPU_IS_LOST:
		// It does not say which: all are worth a look. It may say so again at once.
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-e.session.Recalled:
		}
		return &Event{Instance: -1}, nil
	default:
		return nil, fmt.Errorf("wait for errors of GPUs: %w", session.Failure(symWait, got.ret))
	}
}

func (e *ears) event(data gonvml.EventData) *Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	event := &Event{GPU: e.by[data.Device], Instance: -1}
	if data.EventType == gonvml.EventTypeXidCriticalError {
		event.XID = int(data.EventData)
	}
	if data.GpuInstanceId != noInstance {
		event.Instance = int(data.GpuInstanceId)
	}
	return event
}

package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Handler knows what one kind of device needs. Implementations are pure.
type Handler interface {
	// Steps lists the side effects that the device needs, in order, without Done and Output.
	// Their params hold all that is needed to undo them, also after a crash in the middle.
	Steps(claims.Device) ([]journal.Step, error)
	// Edits gives what the device's containers get, from the device as it is now and what its
	// steps gave. Stored device numbers are never used again.
	Edits(claims.Device, []journal.Step) (cdi.Edits, error)
}

// Executor does and undoes the steps of one kind. Both are idempotent: a crash can come after
// the deed and before the journal knows, so Do finds what is done already and Undo what is not.
// The lock of the device's GPU is held during both.
type Executor interface {
	// Do gives the step's output.
	Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error)
	// Undo may get no output although the step was done.
	Undo(ctx context.Context, params, output jsontext.Value) error
}

// Journal is the durable record; journal.Store is one.
type Journal interface {
	Save(*journal.Record) error
	Load(types.UID) (*journal.Record, error)
	Delete(types.UID) error
	List() ([]*journal.Record, []journal.Bad, error)
	Quarantine(types.UID) (path string, err error)
}

// Locks excludes other calls and other processes; lock.Locker is one.
type Locks interface {
	Lock(context.Context, lock.Key) (unlock func(), err error)
	LockAll(context.Context, ...lock.Key) (unlock func(), err error)
}

// Specs is the CDI directory; cdi.Dir is one.
type Specs interface {
	CheckClaim(context.Context, []cdi.Device) error
	EnsureClaim(context.Context, types.UID, []cdi.Device) (written bool, err error)
	RemoveClaim(types.UID) error
	ClaimID(device string) string
	BaseID() string
}

// Base is the base CDI spec; cdi.Base is one.
type Base interface {
	Ensure(context.Context) error
}

// Config is what an Engine works with.
type Config struct {
	Journal Journal
	Locks   Locks
	Specs   Specs
	Base    Base
	// HoldersDir says which claims are on which GPU. It belongs beside the journal: the same
	// for all processes that share that, and kept over a reboot.
	HoldersDir string
	// BootID is the kernel's, /proc/sys/kernel/random/boot_id.
	BootID    string
	Handlers  map[device.Kind]Handler
	Executors map[string]Executor
	// Quarantined is told of a record that could not be used and where it was put; may be nil.
	Quarantined func(ctx context.Context, path string, err error)
	// Waiting is told that a prepare waits for a device that another claim has; may be nil. It
	// must not block.
	Waiting func()
	// HolderWait is how long a prepare waits for a device whose former claim is still being
	// unprepared; 0 means 10 s.
	HolderWait time.Duration
}

const (
	defaultHolderWait = 10 * time.Second
	// undoTime bounds the rollback of a prepare whose own time is up.
	undoTime = 15 * time.Second
)

// Engine prepares and unprepares claims. It is safe for concurrent use, also by several
// processes with the same directories. It keeps nothing in memory that it could not do without.
type Engine struct {
	Config
	holders holders
	running running
}

// New returns an Engine. The caller runs Recover before the first Prepare.
func New(config Config) (*Engine, error) {
	if err := os.MkdirAll(config.HoldersDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of holders: %w", err)
	}
	if config.BootID == "" {
		return nil, errors.New("the kernel's boot id is not known: without it a reboot cannot be told from a restart")
	}
	config.HolderWait = cmp.Or(config.HolderWait, defaultHolderWait)
	return &Engine{
		Config:  config,
		holders: holders{dir: config.HoldersDir, journal: config.Journal},
		running: running{calls: map[types.UID]map[*call]struct{}{}, changed: make(chan struct{})},
	}, nil
}

func claimKey(uid types.UID) lock.Key {
	return lock.Key{Name: "claim_" + string(uid), Transient: true}
}

// GPUKey names the lock of a GPU: whoever changes one holds it.
func GPUKey(a pci.Address) lock.Key { return gpuKey(a) }

func gpuKey(a pci.Address) lock.Key { return lock.Key{Name: "gpu_" + a.Label()} }

// running knows the prepare calls of this process, so that an unprepare can end those that came
// before it, and wakes calls that wait for a device.
type running struct {
	mu      sync.Mutex
	calls   map[types.UID]map[*call]struct{}
	changed chan struct{}
}

type call struct{ cancel context.CancelCauseFunc }

// start registers a prepare; the returned function ends it.
func (r *running) start(ctx context.Context, uid types.UID) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls[uid] == nil {
		r.calls[uid] = map[*call]struct{}{}
	}
	r.calls[uid][c] = struct{}{}
	return ctx, func() {
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls[uid], c)
		if len(r.calls[uid]) == 0 {
			delete(r.calls, uid)
		}
	}
}

// Supersede ends the prepares of the claim that have begun in this process, with ErrSuperseded:
// the kubelet wants it unprepared. Unprepare does the same; this is for who knows earlier.
func (e *Engine) Supersede(uid types.UID) { e.running.supersede(uid) }

// supersede ends the prepares of the claim that have begun.
func (r *running) supersede(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.calls[uid] {
		c.cancel(ErrSuperseded)
	}
}

// released wakes all that wait for a device.
func (r *running) released() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait returns a channel that is closed at the next release.
func (r *running) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

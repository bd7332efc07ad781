package nvml

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/renewal"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Options say where the library is, and what of the node is read.
type Options struct {
	// Root is the driver root as this process sees it.
	Root string
	// Path names the library's file; Root is not searched then.
	Path string
	// CallTimeout bounds each call; 0 means 20 s.
	CallTimeout time.Duration
	// Partitions has Read ask what GPUs can be cut into and what instances there are.
	Partitions bool
	// Selection says which GPUs are read. Those that it excludes are left alone.
	Selection selection.Selection
	// Calls are C functions that those who borrow the session want to make.
	Calls []string
}

// Library is the driver's library, opened when it is first needed and again after it went away.
// Make one a process. It may be used concurrently.
type Library struct {
	*session.Library
	partitions *partitions
	selection  selection.Selection
	// reader belongs to the session of the last reading; who reads guards it.
	reader *reader
	// mu guards renewal.
	mu      sync.Mutex
	renewal renewal.Policy
}

var _ inventory.NVML = (*Library)(nil)

// New makes a Library; nothing is opened yet.
func New(o Options) *Library {
	return &Library{
		Library: session.New(session.Options{
			Root: o.Root, Path: o.Path, CallTimeout: o.CallTimeout,
			Required: required(), Calls: slices.Concat(optional(), migSymbols(), modeSymbols(), o.Calls),
		}),
		partitions: &partitions{wanted: o.Partitions, profiles: map[profilesKey][]inventory.MIGProfile{}},
		selection:  o.Selection,
	}
}

// Read reads the driver and all GPUs. It opens the library if it is not open, and again when
// the session has ended or when onBus has GPUs that NVML does not serve (at once for those that
// came since the last reading, else ever more rarely). Errors are those of session.Library's
// Renewing, TransientError and CallError.
func (l *Library) Read(ctx context.Context, onBus []pci.Address) (inventory.Reading, error) {
	var reading inventory.Reading
	err := l.Renewing(ctx, func(s *session.Session) (again bool, err error) {
		if reading, err = l.readIn(s).read(ctx, onBus); err != nil {
			return false, err
		}
		return l.wantsNewSession(s, reading, onBus), nil
	})
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.renewal.Noted(unserved(reading, onBus), onBus)
	}
	return reading, err
}

// readIn gives the reader of a session.
func (l *Library) readIn(s *session.Session) *reader {
	if l.reader == nil || l.reader.session != s {
		l.reader = &reader{session: s, partitions: l.partitions, selection: l.selection, judged: map[pci.Address]selection.Verdict{}, ends: ends{}}
	}
	return l.reader
}

// wantsNewSession tells whether a reading would be better in a new session.
func (l *Library) wantsNewSession(s *session.Session, r inventory.Reading, onBus []pci.Address) bool {
	ended := len(r.Boards) > 0
	for _, b := range r.Boards {
		ended = ended && session.Ended(b.Err, b.PCI.Err, b.UUID.Err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return ended || l.renewal.Due(unserved(r, onBus), time.Since(s.Opened))
}

// unserved are the GPUs of the bus that a reading should have and has not, or has lost.
func unserved(r inventory.Reading, onBus []pci.Address) []pci.Address {
	missing := slices.DeleteFunc(slices.Clone(onBus), func(a pci.Address) bool { return slices.Contains(r.Excluded, a) })
	for _, b := range r.Boards {
		if usable(b) {
			missing = slices.DeleteFunc(missing, func(a pci.Address) bool { return a == b.PCI.Value })
		}
	}
	return missing
}

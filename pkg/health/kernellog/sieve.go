package kernellog

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-dra/driver/pkg/pci"
)

// most bounds how many errors are remembered. A node has at most some dozens of GPUs with a few
// kinds of error each.
const most = 1024

// sieve keeps back what NVML has told or is about to tell. It has no clock of its own.
type sieve struct {
	// grace is how long the two may lie apart.
	grace time.Duration
	// told is when NVML last told of an error, waiting what the log has that NVML may yet tell.
	told    map[key]time.Time
	waiting map[key]kept
}

// key says which errors are taken for one. The instance is left out: either may not name it.
type key struct {
	gpu pci.Address
	xid int
}

type kept struct {
	message Message
	due     time.Time
}

func newSieve(grace time.Duration) *sieve {
	return &sieve{grace: grace, told: map[key]time.Time{}, waiting: map[key]kept{}}
}

// tells notes that NVML told of an error.
func (s *sieve) tells(gpu pci.Address, xid int, now time.Time) {
	k := key{gpu, xid}
	delete(s.waiting, k)
	for old, at := range s.told {
		if now.Sub(at) > s.grace {
			delete(s.told, old)
		}
	}
	if _, had := s.told[k]; had || len(s.told) < most {
		s.told[k] = now
	}
}

// logged notes an error of the log; false if there are too many.
func (s *sieve) logged(m Message, now time.Time) bool {
	k := key{m.GPU, m.XID}
	if at, ok := s.told[k]; ok && now.Sub(at) <= s.grace {
		return true
	}
	had, ok := s.waiting[k]
	switch {
	case ok && had.message.Instance != m.Instance:
		// Of two instances, or of one and the GPU: all of it is on the safe side.
		had.message.Instance = -1
		s.waiting[k] = had
	case !ok && len(s.waiting) >= most:
		return false
	case !ok:
		s.waiting[k] = kept{m, now.Add(s.grace)}
	}
	return true
}

// due takes out what NVML has not told in time, the oldest first.
func (s *sieve) due(now time.Time) []Message {
	var over []kept
	for k, w := range s.waiting {
		if !now.Before(w.due) {
			over = append(over, w)
			delete(s.waiting, k)
		}
	}
	slices.SortFunc(over, func(a, b kept) int {
		return cmp.Or(a.due.Compare(b.due), a.message.GPU.Compare(b.message.GPU), cmp.Compare(a.message.XID, b.message.XID))
	})
	out := make([]Message, 0, len(over))
	for _, w := range over {
		out = append(out, w.message)
	}
	return out
}

// next is when something is due; the zero time for nothing.
func (s *sieve) next() time.Time {
	var next time.Time
	for _, w := range s.waiting {
		if next.IsZero() || w.due.Before(next) {
			next = w.due
		}
	}
	return next
}

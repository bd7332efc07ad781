package reconcile

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ErrLater is Remove's answer where the thing is still there and nothing is wrong: a later pass tries
// again.
var ErrLater = errors.New("it cannot be removed yet")

// Owner knows one kind of thing on the node that only this driver makes and that only a claim
// accounts for: CDI specs, partitions, daemons. What others made is none of its things.
type Owner interface {
	// Kind is what its things are called in logs and Events, "CDI spec".
	Kind() string
	// Things lists what is there.
	Things(ctx context.Context) ([]Thing, error)
	// Accounts tells whether the record is why the thing is there. It is not asked of things
	// that name their claim.
	Accounts(record *journal.Record, thing Thing) bool
	// Remove undoes the thing. It is idempotent, and called under the lock of the thing's claim
	// or GPU when nothing accounts for it. Without an error the thing is gone; see ErrLater.
	Remove(ctx context.Context, thing Thing) error
}

// Thing is one of an Owner's. It names its claim, or else its GPU, or neither where no step of a
// prepare makes it.
type Thing struct {
	// ID tells it from the Owner's others, and people where to look.
	ID string
	// Claim is the one it is for: it goes when that has no record.
	Claim types.UID
	// GPU is where it is: it goes when no record accounts for it.
	GPU pci.Address
}

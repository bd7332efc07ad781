// Package leftover knows the files that are made for claims outside the journal: CDI specs, and
// the metadata of the DRA library with the specs that mount it. They are for the reconciler, as
// its Owners. The package must not decide what is left over.
//
// A record is written before any of these files and removed after them, so a file without a
// record is what a killed process or a cancelled call left.
package leftover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// SpecDir is the directory of CDI specs; cdi.Dir is one.
type SpecDir interface {
	Claims() ([]types.UID, error)
	RemoveClaim(types.UID) error
}

// Specs are the CDI specs of claims.
type Specs struct{ Dir SpecDir }

// Kind implements reconcile.Owner.
func (Specs) Kind() string { return "CDI spec" }

// Things implements reconcile.Owner.
func (s Specs) Things(context.Context) ([]reconcile.Thing, error) {
	claims, err := s.Dir.Claims()
	if err != nil {
		return nil, err
	}
	things := make([]reconcile.Thing, 0, len(claims))
	for _, uid := range claims {
		// A name that cannot be a claim's is not ours.
		if journal.CheckUID(uid) == nil {
			things = append(things, reconcile.Thing{ID: string(uid), Claim: uid})
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner.
func (Specs) Accounts(*journal.Record, reconcile.Thing) bool { return false }

// Remove implements reconcile.Owner.
func (s Specs) Remove(_ context.Context, t reconcile.Thing) error { return s.Dir.RemoveClaim(t.Claim) }

// MetadataSpecs are the CDI specs that the library makes to mount metadata. Their names are
// DRIVER_metadata_UID_REQUEST.json.
type MetadataSpecs struct {
	Dir    string
	Driver string
}

// Kind implements reconcile.Owner.
func (MetadataSpecs) Kind() string { return "CDI spec of metadata" }

// Things implements reconcile.Owner.
func (m MetadataSpecs) Things(context.Context) ([]reconcile.Thing, error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the CDI directory: %w", err)
	}
	var things []reconcile.Thing
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), m.Driver+"_metadata_")
		uid, _, named := strings.Cut(rest, "_")
		if ours && named && strings.HasSuffix(rest, ".json") && e.Type().IsRegular() && journal.CheckUID(types.UID(uid)) == nil {
			things = append(things, reconcile.Thing{ID: e.Name(), Claim: types.UID(uid)})
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner.
func (MetadataSpecs) Accounts(*journal.Record, reconcile.Thing) bool { return false }

// Remove implements reconcile.Owner.
func (m MetadataSpecs) Remove(_ context.Context, t reconcile.Thing) error {
	return remove(filepath.Join(m.Dir, t.ID))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Metadata are the library's directories of metadata, one for each name of a claim:
// NAMESPACE_NAME.
type Metadata struct{ Dir string }

// Kind implements reconcile.Owner.
func (Metadata) Kind() string { return "metadata" }

// Things implements reconcile.Owner.
func (m Metadata) Things(context.Context) ([]reconcile.Thing, error) {
	entries, err := os.ReadDir(m.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the metadata of claims: %w", err)
	}
	var things []reconcile.Thing
	for _, e := range entries {
		if e.IsDir() && strings.Contains(e.Name(), "_") {
			things = append(things, reconcile.Thing{ID: e.Name()})
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner. A record that does not know its claim's name may be any's.
func (Metadata) Accounts(r *journal.Record, t reconcile.Thing) bool {
	return r.Name == "" || r.Namespace+"_"+r.Name == t.ID
}

// Remove implements reconcile.Owner.
func (m Metadata) Remove(_ context.Context, t reconcile.Thing) error {
	return os.RemoveAll(filepath.Join(m.Dir, t.ID))
}

// Unless has an owner find nothing while others tells that there are things of another driver among
// its own: both take them from the library that they share, by the same names.
type Unless struct {
	reconcile.Owner
	Others func() bool
}

// Things implements reconcile.Owner.
func (u Unless) Things(ctx context.Context) ([]reconcile.Thing, error) {
	if u.Others() {
		return nil, nil
	}
	return u.Owner.Things(ctx)
}

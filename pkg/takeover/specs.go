package takeover

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

// TakenName is that of a checkpoint whose claims were all taken over. It says that the node's CDI
// specs of the other driver are for this one to remove.
const TakenName = FileName + ".taken-over"

// otherSpecs is how the other driver names the CDI spec of a claim: this, its UID, and ".json" or
// ".yaml". Its containers are started again from it, so it stays as long as the claim.
const otherSpecs = "k8s.gpu.nvidia.com-claim_"

// Specs are the CDI specs of the other driver's claims, for the reconciler, as its Owner: that
// driver does not remove them any more. They are its own where its checkpoint is there.
type Specs struct {
	// Data is the directory of the checkpoint, CDI that of the specs.
	Data, CDI string
}

// Kind implements reconcile.Owner.
func (Specs) Kind() string { return "CDI spec of the former driver" }

// Things implements reconcile.Owner.
func (s Specs) Things(context.Context) ([]reconcile.Thing, error) {
	if !present(filepath.Join(s.Data, TakenName)) || present(filepath.Join(s.Data, FileName)) {
		return nil, nil
	}
	entries, err := os.ReadDir(s.CDI)
	if err != nil {
		return nil, fmt.Errorf("CDI specs of the former driver: %w", err)
	}
	var things []reconcile.Thing
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), otherSpecs)
		uid := types.UID(strings.TrimSuffix(rest, filepath.Ext(rest)))
		if ok && !e.IsDir() && (filepath.Ext(rest) == ".json" || filepath.Ext(rest) == ".yaml") && journal.CheckUID(uid) == nil {
			things = append(things, reconcile.Thing{ID: e.Name(), Claim: uid})
		}
	}
	return things, nil
}

// present tells whether a file may be there: to be on the safe side, also where that is not known.
func present(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Accounts implements reconcile.Owner.
func (Specs) Accounts(*journal.Record, reconcile.Thing) bool { return false }

// Remove implements reconcile.Owner.
func (s Specs) Remove(_ context.Context, t reconcile.Thing) error {
	if err := os.Remove(filepath.Join(s.CDI, t.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("CDI spec of the former driver: %w", err)
	}
	return nil
}

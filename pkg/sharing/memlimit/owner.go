package memlimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Owner gives the reconciler the notes: one whose step no record has is left over.
type Owner struct{ Notes Notes }

var _ reconcile.Owner = Owner{}

// Kind implements reconcile.Owner.
func (Owner) Kind() string { return "memory limit" }

// Things implements reconcile.Owner.
func (o Owner) Things(context.Context) ([]reconcile.Thing, error) {
	gpus, err := os.ReadDir(o.Notes.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the GPUs with limits of memory: %w", err)
	}
	var things []reconcile.Thing
	for _, gpu := range gpus {
		at, ok := ofLabel(gpu.Name())
		if !ok {
			continue // the socket
		}
		files, err := os.ReadDir(filepath.Join(o.Notes.Dir, gpu.Name()))
		if err != nil {
			return nil, fmt.Errorf("list the limits of memory of GPU %s: %w", at, err)
		}
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), ".") {
				things = append(things, reconcile.Thing{ID: path.Join(gpu.Name(), f.Name()), GPU: at})
			}
		}
	}
	return things, nil
}

// Accounts implements reconcile.Owner.
func (Owner) Accounts(record *journal.Record, thing reconcile.Thing) bool {
	for _, d := range record.Devices {
		// Parameters that cannot be read may be those.
		p, err := stepOf(d.Steps)
		if err != nil || p != nil && path.Join(p.PCI.Label(), p.file()) == thing.ID {
			return true
		}
	}
	return false
}

// Remove implements reconcile.Owner.
func (o Owner) Remove(_ context.Context, thing reconcile.Thing) error {
	gpu, file := path.Split(thing.ID)
	return o.Notes.remove(gpu, file)
}

// ofLabel finds the address that has a label, "0000-1a-00-0".
func ofLabel(label string) (pci.Address, bool) {
	parts := strings.Split(label, "-")
	if len(parts) != 4 {
		return pci.Address{}, false
	}
	at, err := pci.Parse(strings.Join(parts[:3], ":") + "." + parts[3])
	return at, err == nil && at.Label() == label
}

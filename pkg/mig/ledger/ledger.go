// Package ledger remembers what this driver did to GPUs: whose MIG mode it switched on and which
// GPU instances it made. It is for the steps that do and undo that, and for whoever must tell
// our instances from those that an administrator or another tool made, which are never touched.
// It must not know claims, nor what is on a GPU now.
//
// An instance is known by its GPU and its place: a MIG UUID comes again when an instance is made
// anew. What is remembered counts in one boot of the machine, since instances do not outlive it,
// and on one board. So nothing here needs to survive a loss of power.
//
// Entries come before the deed and go after it is undone. So an entry without an instance is
// possible and harmless, and an instance of ours without an entry is not.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// What is done for claims and what is done for declared layouts are kept apart: claims must not
// remove what an administrator declared. ForLayouts is the ledger as those see it who lay GPUs
// out; to everybody else what is done for layouts is as if others had done it.

// DirName is the ledger's directory below the driver's data directory.
const DirName = "mig"

// Entry is what was done to one GPU.
type Entry struct {
	PCI     pci.Address `json:"pci"`
	GPUUUID string      `json:"gpuUUID"`
	BootID  string      `json:"bootID"`
	Deeds
	// Layout is what was done for declared layouts.
	Layout Deeds `json:"layout,omitzero"`
}

// Deeds are what was done for one purpose.
type Deeds struct {
	// Mode tells that we switched the MIG mode on.
	Mode bool `json:"mode,omitzero"`
	// Instances are the GPU instances that we made or were about to make.
	Instances []Instance `json:"instances,omitzero"`
}

func (d Deeds) none() bool { return !d.Mode && len(d.Instances) == 0 }

func (d Deeds) same(other Deeds) bool {
	return d.Mode == other.Mode && slices.Equal(d.Instances, other.Instances)
}

func (d Deeds) has(found inventory.MIGInstance) bool {
	return slices.ContainsFunc(d.Instances, func(i Instance) bool { return i.Is(found) })
}

// Instance is the place of a GPU instance and what was to be there.
type Instance struct {
	Profile int `json:"profile"`
	Start   int `json:"start"`
	Size    int `json:"size"`
}

// Placement is where the instance is.
func (i Instance) Placement() inventory.MIGPlacement {
	return inventory.MIGPlacement{Start: i.Start, Size: i.Size}
}

// Is tells whether it is the instance that was found.
func (i Instance) Is(found inventory.MIGInstance) bool {
	return i.Profile == found.ProfileID && i.Placement() == found.Placement
}

// Ledger is a directory with a file for each GPU that something was done to. Changes of a GPU's
// entry are made under the GPU's lock, which the callers hold; reading needs none.
type Ledger struct {
	dir    string
	bootID string
	// layouts tells whose deeds are read and changed.
	layouts bool
	// edits counts changes by this process.
	edits *atomic.Uint64
}

// New is the ledger in a directory, which is made when something is first noted. bootID is the
// kernel's.
func New(dir, bootID string) *Ledger {
	return &Ledger{dir: dir, bootID: bootID, edits: new(atomic.Uint64)}
}

// ForLayouts is the same ledger for those who lay GPUs out: Mode and Instances of its entries are
// what was done for declared layouts, and so is what is changed.
func (l *Ledger) ForLayouts() *Ledger {
	return &Ledger{dir: l.dir, bootID: l.bootID, layouts: true, edits: l.edits}
}

func (l *Ledger) path(at pci.Address) string { return filepath.Join(l.dir, at.Label()+".json") }

// Read gives what was done to a GPU in this boot; the zero Entry for nothing, and for a board
// that is not the one it was done to. A file that cannot be read says nothing: then nothing is
// ours, so that nothing of others is destroyed.
func (l *Ledger) Read(gpu inventory.GPUID) (Entry, error) {
	entry, err := l.read(gpu)
	if l.layouts {
		entry.Deeds = entry.Layout
	}
	return entry, err
}

func (l *Ledger) read(gpu inventory.GPUID) (Entry, error) {
	data, err := os.ReadFile(l.path(gpu.PCI))
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{}, nil
	}
	if err != nil {
		return Entry{}, fmt.Errorf("MIG ledger: %w", err)
	}
	entry, err := parse(data)
	if err != nil || entry.BootID != l.bootID || entry.GPUUUID != gpu.UUID {
		return Entry{}, nil //nolint:nilerr // what cannot be read claims nothing
	}
	return entry, nil
}

func parse(data []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, fmt.Errorf("decode entry of the MIG ledger: %w", err)
	}
	return e, nil
}

// SetMode notes that we switched the MIG mode on, or that it is not ours any more.
func (l *Ledger) SetMode(gpu inventory.GPUID, ours bool) error {
	return l.change(gpu, func(d *Deeds) { d.Mode = ours })
}

// KeepMode notes that a MIG mode which was switched on for claims is now for a layout.
func (l *Ledger) KeepMode(gpu inventory.GPUID) error {
	return l.edit(gpu, func(e *Entry) {
		e.Layout.Mode = e.Layout.Mode || e.Mode
		e.Mode = false
	})
}

// Add notes an instance that is about to be made.
func (l *Ledger) Add(gpu inventory.GPUID, i Instance) error {
	return l.change(gpu, func(d *Deeds) {
		if !slices.Contains(d.Instances, i) {
			d.Instances = append(d.Instances, i)
		}
	})
}

// Remove forgets an instance.
func (l *Ledger) Remove(gpu inventory.GPUID, i Instance) error {
	return l.change(gpu, func(d *Deeds) {
		d.Instances = slices.DeleteFunc(d.Instances, func(other Instance) bool { return other == i })
	})
}

func (l *Ledger) change(gpu inventory.GPUID, change func(*Deeds)) error {
	return l.edit(gpu, func(e *Entry) {
		if l.layouts {
			change(&e.Layout)
			return
		}
		change(&e.Deeds)
	})
}

func (l *Ledger) edit(gpu inventory.GPUID, change func(*Entry)) error {
	defer l.edits.Add(1)
	entry, err := l.read(gpu)
	if err != nil {
		return err
	}
	before := entry
	before.Instances, before.Layout.Instances = slices.Clone(entry.Instances), slices.Clone(entry.Layout.Instances)
	change(&entry)
	switch {
	case entry.none() && entry.Layout.none():
		if err := os.Remove(l.path(gpu.PCI)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("MIG ledger: %w", err)
		}
		return nil
	case entry.same(before.Deeds) && entry.Layout.same(before.Layout):
		return nil
	}
	entry.BootID, entry.PCI, entry.GPUUUID = l.bootID, gpu.PCI, gpu.UUID
	data, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("encode entry of the MIG ledger: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("directory of the MIG ledger: %w", err)
	}
	if err := bootfile.Replace(l.path(gpu.PCI), data); err != nil {
		return fmt.Errorf("MIG ledger: %w", err)
	}
	return nil
}

// Scanner looks at the hardware; inventory.Scanner is one.
type Scanner interface {
	Scan(ctx context.Context) (inventory.Snapshot, error)
}

// Marker is a Scanner that marks in snapshots what is ours.
type Marker struct {
	Scanner Scanner
	Ledger  *Ledger
}

// Scan looks and marks. The ledger is read before and after the look: an instance is ours if it
// was at one of the two, since it may be made or removed during the look.
func (m Marker) Scan(ctx context.Context) (inventory.Snapshot, error) {
	for tries := looks; ; tries-- {
		edits := m.Ledger.edits.Load()
		s, err := m.look(ctx)
		if err != nil || tries <= 1 || edits == m.Ledger.edits.Load() || !unclaimed(s) {
			return s, err
		}
		// An instance may have come and gone within the look, and its note with it: it would
		// seem to be somebody else's.
	}
}

// looks is how often the hardware is looked at while instances come and go.
const looks = 3

// unclaimed tells whether there is an instance that nobody noted.
func unclaimed(s inventory.Snapshot) bool {
	return slices.ContainsFunc(s.GPUs, func(g inventory.GPU) bool {
		return slices.ContainsFunc(g.MIG.Instances, func(i inventory.MIGInstance) bool { return !i.Ours && !i.Declared })
	})
}

func (m Marker) look(ctx context.Context) (inventory.Snapshot, error) {
	before := m.Ledger.all()
	s, err := m.Scanner.Scan(ctx)
	if err != nil {
		return s, err
	}
	after := m.Ledger.all()
	// The scan's slices are ours alone as long as it has not been handed on.
	for i := range s.GPUs {
		g := &s.GPUs[i]
		mark(g, before[g.PCI])
		mark(g, after[g.PCI])
	}
	return s, nil
}

// Mark marks what is ours of one GPU, as of now.
func (l *Ledger) Mark(g *inventory.GPU) error {
	entry, err := l.read(inventory.GPUID{PCI: g.PCI, UUID: g.UUID})
	if err == nil && entry.GPUUUID == g.UUID {
		mark(g, entry)
	}
	return err
}

func mark(g *inventory.GPU, e Entry) {
	if e.GPUUUID != g.UUID {
		return
	}
	g.MIG.Ours = g.MIG.Ours || e.Mode && g.MIG.Enabled
	g.MIG.Declared = g.MIG.Declared || e.Layout.Mode && g.MIG.Enabled
	for i, found := range g.MIG.Instances {
		there := &g.MIG.Instances[i]
		there.Ours = there.Ours || e.has(found)
		there.Declared = there.Declared || e.Layout.has(found)
	}
}

// all reads the entries of this boot.
func (l *Ledger) all() map[pci.Address]Entry {
	entries := map[pci.Address]Entry{}
	files, _ := os.ReadDir(l.dir)
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".json" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(l.dir, f.Name()))
		if err != nil {
			continue
		}
		if e, err := parse(data); err == nil && e.BootID == l.bootID {
			entries[e.PCI] = e
		}
	}
	return entries
}

// Entries are those of this boot, sorted by address. What cannot be read is left out.
func (l *Ledger) Entries() []Entry {
	return slices.SortedFunc(maps.Values(l.all()), func(a, b Entry) int { return a.PCI.Compare(b.PCI) })
}

// Sweep removes what is noted of earlier boots: modes and instances ended with them. A file that
// cannot be read is left; the next note about its GPU takes its place.
func (l *Ledger) Sweep() error {
	files, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("MIG ledger: %w", err)
	}
	var errs []error
	for _, f := range files {
		path := filepath.Join(l.dir, f.Name())
		data, err := os.ReadFile(path)
		if err != nil || filepath.Ext(f.Name()) != ".json" {
			continue
		}
		if e, err := parse(data); err == nil && e.BootID != l.bootID {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// Empty tells whether nothing is remembered of this boot.
func (l *Ledger) Empty() bool { return len(l.all()) == 0 }

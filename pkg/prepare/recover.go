package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Recovery is what Recover found and mended.
type Recovery struct {
	// Records is the number of records that are good.
	Records int
	// Quarantined are records that were set aside, with their new paths.
	Quarantined []journal.Bad
	// Rebuilt are those of them whose ownership was taken from the holder files: their claims
	// keep their devices, though what their steps did is not known.
	Rebuilt []claims.Ref
	// Unreadable are left as they are: records of a newer release, and files that are not ours.
	Unreadable []journal.Bad
}

// Recover makes the holder files agree with the journal and sets aside records that cannot be
// read. It runs before the first Prepare and may run at any time; another process may work on
// the same directories. Nothing but our own records and holder files is touched.
func (e *Engine) Recover(ctx context.Context) (Recovery, error) {
	var found Recovery
	records, bad, err := e.Journal.List()
	if err != nil {
		return found, err
	}
	var errs []error
	for _, b := range bad {
		errs = append(errs, e.recoverBad(ctx, b, &found))
	}
	for _, r := range records {
		// A record that goes away meanwhile leaves entries that do not count.
		errs = append(errs, e.holders.put(r))
	}
	found.Records = len(records) + len(found.Rebuilt)
	e.sweepHolders(ctx)
	return found, errors.Join(errs...)
}

// recoverBad sets one record aside and, where the holder files say what its claim has, puts a
// record without steps in its place.
func (e *Engine) recoverBad(ctx context.Context, b journal.Bad, found *Recovery) error {
	corrupt := new(journal.CorruptError)
	if b.UID == "" || !errors.As(b.Err, &corrupt) {
		found.Unreadable = append(found.Unreadable, b)
		return nil
	}
	unlock, err := e.lockSoon(ctx, claimKey(b.UID))
	if err != nil {
		// Whoever has the claim meets the same record and sets it aside.
		return ctx.Err()
	}
	defer unlock()
	if _, err := e.Journal.Load(b.UID); !errors.As(err, &corrupt) {
		return nil // written anew or removed since
	}
	rebuilt, aside, err := e.setAside(b.UID)
	if aside != "" {
		found.Quarantined = append(found.Quarantined, journal.Bad{UID: b.UID, Path: aside, Err: b.Err})
	}
	if rebuilt != nil {
		found.Rebuilt = append(found.Rebuilt, claims.Ref{Namespace: rebuilt.Namespace, Name: rebuilt.Name, UID: rebuilt.UID})
	}
	return err
}

// setAside moves a record that cannot be used out of the way and puts one without steps, made
// from the holder files, in its place; nil where those know nothing. aside is the new path.
func (e *Engine) setAside(uid types.UID) (rebuilt *journal.Record, aside string, err error) {
	rebuilt = e.holders.find(uid)
	if aside, err = e.Journal.Quarantine(uid); err != nil || rebuilt == nil {
		return nil, aside, err
	}
	if err := e.Journal.Save(rebuilt); err != nil {
		return nil, aside, err
	}
	return rebuilt, aside, nil
}

// find puts together what the claim has at all GPUs; nil where no entry can be read.
func (h *holders) find(uid types.UID) *journal.Record {
	var whole *journal.Record
	for _, gpu := range h.entries() {
		if !slices.Contains(gpu.claims, string(uid)) {
			continue
		}
		part, err := readEntry(filepath.Join(h.dir, gpu.name, string(uid)), uid)
		switch {
		case err != nil:
		case whole == nil:
			whole = part
		default:
			whole.Devices = append(whole.Devices, part.Devices...)
		}
	}
	return whole
}

// gpuEntries are the claims entered at one GPU; name is that of its directory.
type gpuEntries struct {
	name   string
	claims []string
}

// entries lists what can be read of the index; directories that are not a GPU's are not ours.
func (h *holders) entries() []gpuEntries {
	var out []gpuEntries
	gpus, _ := os.ReadDir(h.dir)
	for _, g := range gpus {
		if !isLabel(g.Name()) {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(h.dir, g.Name()))
		entry := gpuEntries{name: g.Name()}
		for _, f := range files {
			entry.claims = append(entry.claims, f.Name())
		}
		out = append(out, entry)
	}
	return out
}

// isLabel tells whether a name is what pci.Address.Label makes.
func isLabel(name string) bool {
	fields := strings.Split(name, "-")
	if len(fields) != 4 {
		return false
	}
	a, err := pci.Parse(strings.Join(fields[:3], ":") + "." + fields[3])
	return err == nil && a.Label() == name
}

// recoverLockWait is how long Recover waits for a lock: it is housekeeping before the plugin
// registers, and another instance may hang while it holds one.
const recoverLockWait = 200 * time.Millisecond

func (e *Engine) lockSoon(ctx context.Context, key lock.Key) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, recoverLockWait)
	defer cancel()
	return e.Locks.Lock(ctx, key)
}

// sweepHolders removes entries whose record is gone. The lock of the GPU keeps away a prepare
// that has made its entry and not yet its record.
func (e *Engine) sweepHolders(ctx context.Context) {
	for _, gpu := range e.holders.entries() {
		if len(gpu.claims) == 0 {
			continue
		}
		unlock, err := e.lockSoon(ctx, lock.Key{Name: "gpu_" + gpu.name})
		if err != nil {
			// Somebody works on this GPU. Entries without a record do not count anyway.
			continue
		}
		for _, claim := range gpu.claims {
			// Removes the entry where it is left over; an unreadable record is not.
			_, _ = e.holders.holder(filepath.Join(e.holders.dir, gpu.name, claim), types.UID(claim))
		}
		unlock()
	}
}

package takeover

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// File is the other driver's checkpoint, and what records are to say of this node.
type File struct {
	Path, Driver, Pool, BootID string
}

// progress is what was done with a checkpoint that has to stay for now. It lies beside it, since
// a claim that was entered and unprepared must not be entered again, by no later process.
type progress struct {
	// Of is the sum of the checkpoint that it is about: the other driver may have come back.
	Of string `json:"of"`
	// BootID is of the first look: in it the claims were prepared if the checkpoint does not say.
	BootID  string      `json:"bootID"`
	Entered []types.UID `json:"entered,omitempty"`
}

// Enter has a record adopted for every claim of the checkpoint, once. devices are those that the
// node has now. A claim with a device that is not among them waits for it, and with it the file,
// until a reboot, which ends all its containers. Then what is there of it is entered. When nothing
// waits the file gets another name. What cannot be done is logged; a later call tries again.
func (f File) Enter(ctx context.Context, adopt func(context.Context, *journal.Record) (adopted bool, err error), devices map[string]device.Device) {
	logger := klog.FromContext(ctx)
	checkpoint, done, noted, err := f.read()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		logger.Error(err, "The checkpoint of another driver cannot be used and is left as it is", "file", f.Path)
		return
	}
	records, parts, missing := checkpoint.Records(devices, f.BootID)
	waits := checkpoint.BootID == f.BootID && len(missing) > 0
	if !waits {
		records = append(records, parts...)
	}
	for _, r := range records {
		adopted, err := adopt(ctx, r)
		if err != nil {
			logger.Error(err, "A claim of the former driver is not taken over yet", "claimUID", r.UID)
			waits = true
			break
		}
		logger.Info("Took over a claim of the former driver", "claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID, "adopted", adopted)
		done.Entered, noted = append(done.Entered, r.UID), false
	}
	if waits && noted {
		return
	}
	for _, err := range missing {
		logger.Error(err, "A claim of the former driver is not taken over, or not whole", "triedAgain", waits)
	}
	if waits {
		err = f.note(done)
	} else if err = os.Rename(f.Path, filepath.Join(filepath.Dir(f.Path), TakenName)); err == nil {
		// Without its checkpoint it says nothing.
		_ = os.Remove(f.progressPath())
	}
	if err != nil {
		logger.Error(err, "The checkpoint of the former driver is read again")
	}
}

// Pending are the devices that are there of the claims that wait for others: their pods run.
func (f File) Pending(devices map[string]device.Device) Taken {
	checkpoint, _, _, err := f.read()
	if err != nil {
		return nil // Enter tells
	}
	_, parts, _ := checkpoint.Records(devices, f.BootID)
	return TakenBy(parts)
}

// read gives the checkpoint without the claims that were entered already, and what is noted of it.
func (f File) read() (checkpoint Checkpoint, done progress, noted bool, err error) {
	data, err := os.ReadFile(f.Path)
	if err != nil {
		return checkpoint, done, false, err
	}
	if checkpoint, err = Parse(data, f.Driver, f.Pool); err != nil {
		return checkpoint, done, false, err
	}
	sum := sha256.Sum256(data)
	of := hex.EncodeToString(sum[:])
	note, err := os.ReadFile(f.progressPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return checkpoint, done, false, fmt.Errorf("what was taken over already: %w", err)
	}
	if noted = err == nil && json.Unmarshal(note, &done) == nil && done.Of == of; !noted {
		done = progress{Of: of, BootID: f.BootID}
	}
	if checkpoint.BootID == "" {
		checkpoint.BootID = done.BootID
	}
	checkpoint.Claims = slices.DeleteFunc(checkpoint.Claims, func(c Claim) bool { return slices.Contains(done.Entered, c.UID) })
	return checkpoint, done, noted, nil
}

func (f File) progressPath() string { return f.Path + ".entered" }

// note writes what was done, whole or not at all.
func (f File) note(done progress) error {
	data, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("encode what was taken over: %w", err)
	}
	if err := bootfile.Replace(f.progressPath(), data); err != nil {
		return fmt.Errorf("note what was taken over: %w", err)
	}
	return nil
}

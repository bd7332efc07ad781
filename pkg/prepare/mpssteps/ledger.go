package mpssteps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// entry is what is known of one device.
type entry struct {
	// Where is the device and what its daemon has to be; the claim in it is that of the first user.
	Where params `json:"device"`
	// Before is the compute mode that the device had; nil where it was not changed.
	Before *inventory.ComputeMode `json:"computeModeBefore,omitzero"`
	// Users are the claims that use the device, by params.user.
	Users map[string]holder `json:"users"`
}

// names lists the users for people.
func (e entry) names() []string {
	var out []string
	for _, h := range e.Users {
		out = append(out, h.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// same compares settings as they lie on disk.
func same(a, b Setting) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func (s Setting) String() string {
	parts := []string{"all threads"}
	if p := s.ActiveThreadPercentage; p != nil {
		parts[0] = fmt.Sprintf("%d%% of the threads", *p)
	}
	if s.PinnedMemoryMiB > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB of memory", s.PinnedMemoryMiB))
	}
	if s.MultiUser {
		parts = append(parts, "multiUser")
	}
	for _, m := range s.Group {
		parts = append(parts, "with "+m.Device)
	}
	return strings.Join(parts, ", ")
}

// ledger keeps entries, one file a device.
type ledger struct{ layout mps.Layout }

func (l ledger) file(device string) string { return filepath.Join(l.layout.Devices(), device+".json") }

// read gives an entry without users for a device that nobody uses. found is false there. One that
// cannot be read counts as one whose device had the default mode, since a crash of the machine
// can cut a file off, and with it go the modes.
func (l ledger) read(device string) (e entry, found bool, err error) {
	e.Users = map[string]holder{}
	data, err := os.ReadFile(l.file(device))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return e, false, nil
	case err != nil:
		return e, false, fmt.Errorf("who uses device %s by MPS: %w", device, err)
	}
	if damaged := json.Unmarshal(data, &e); damaged != nil || e.Users == nil {
		before := inventory.ComputeDefault
		e = entry{Before: &before, Users: map[string]holder{}}
	}
	return e, true, nil
}

// write replaces the entry in one step.
func (l ledger) write(device string, e entry) error {
	data, err := json.Marshal(e, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode who uses device %s by MPS: %w", device, err)
	}
	file := l.file(device)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("note who uses device %s by MPS: %w", device, err)
	}
	if err := bootfile.Replace(file, append(data, '\n')); err != nil {
		return fmt.Errorf("note who uses device %s by MPS: %w", device, err)
	}
	return nil
}

func (l ledger) remove(device string) error {
	if err := os.Remove(l.file(device)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that nobody uses device %s by MPS: %w", device, err)
	}
	return nil
}

// devices lists the devices that have an entry.
func (l ledger) devices() ([]string, error) {
	files, err := os.ReadDir(l.layout.Devices())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the devices that are used by MPS: %w", err)
	}
	var out []string
	for _, f := range files {
		if device, ok := strings.CutSuffix(f.Name(), ".json"); ok && mps.CheckName(device) == nil {
			out = append(out, device)
		}
	}
	return out, nil
}

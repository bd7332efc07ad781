package timeslicing

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Users is the record, for each GPU, of the claims that asked for an interval:
// <dir>/<pci address>/<claim UID>[_<share>]. All processes that share the claims' records share
// it, and it is kept over a reboot. An entry counts only while its claim has a record; files are
// not synced, since what they are about does not outlive a loss of power either.
type Users struct {
	dir  string
	boot string
	// known tells whether a claim has a record.
	known func(types.UID) bool
}

// NewUsers returns the record in a directory, which need not exist. Boot is the kernel's boot id.
func NewUsers(dir, boot string, known func(types.UID) bool) *Users {
	return &Users{dir: dir, boot: boot, known: known}
}

// user is one entry. Set tells that the GPU had the interval when the entry was last written.
type user struct {
	stepParams
	Boot string `json:"boot"`
	Set  bool   `json:"set,omitzero"`
}

func (u *Users) gpuDir(at pci.Address) string { return filepath.Join(u.dir, at.Label()) }

func (u *Users) path(p stepParams) string { return filepath.Join(u.gpuDir(p.PCI), p.user()) }

// others lists the entries of other steps on the step's GPU whose claims live. What is left over
// of other claims is removed, and so is what cannot be read: it was torn by a loss of power.
func (u *Users) others(p stepParams) ([]user, error) {
	files, err := os.ReadDir(u.gpuDir(p.PCI))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for users of GPU %s: %w", p.PCI, err)
	}
	var out []user
	for _, f := range files {
		if f.Name() == p.user() || f.IsDir() {
			continue
		}
		path := filepath.Join(u.gpuDir(p.PCI), f.Name())
		other, err := read(path)
		if err != nil {
			return nil, err
		}
		if other == nil || other.user() != f.Name() || !u.known(other.UID) {
			_ = os.Remove(path)
			continue
		}
		out = append(out, *other)
	}
	return out, nil
}

// get gives the step's own entry, nil for none.
func (u *Users) get(p stepParams) (*user, error) { return read(u.path(p)) }

func read(path string) (*user, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read a user of a GPU: %w", err)
	}
	return parse(data), nil
}

// parse gives nil for what was not written by put.
func parse(data []byte) *user {
	var entry user
	if err := json.Unmarshal(data, &entry); err != nil || entry.UID == "" || entry.Interval == "" {
		return nil
	}
	return &entry
}

// put writes an entry. What a kill leaves of it is removed by others: its name is no claim's.
func (u *Users) put(entry user) error {
	data, err := json.Marshal(&entry)
	if err != nil {
		return fmt.Errorf("encode a user of GPU %s: %w", entry.PCI, err)
	}
	dir := u.gpuDir(entry.PCI)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of users of GPU %s: %w", entry.PCI, err)
	}
	if err := bootfile.Replace(u.path(entry.stepParams), data); err != nil {
		return fmt.Errorf("write a user of GPU %s: %w", entry.PCI, err)
	}
	return nil
}

func (u *Users) remove(p stepParams) error {
	if err := os.Remove(u.path(p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a user of GPU %s: %w", p.PCI, err)
	}
	return nil
}

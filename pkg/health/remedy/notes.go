package remedy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Notes are files, one for each GPU that was reset. A boot resets all GPUs, so they count for this
// boot alone.
type Notes struct {
	Dir    string
	BootID string
}

type noted struct {
	BootID string `json:"bootID"`
	Note
}

func (n Notes) path(at pci.Address) string {
	return filepath.Join(n.Dir, strings.NewReplacer(":", "-", ".", "-").Replace(at.String())+".json")
}

// load gives the note of a board; an empty one where there is none of this boot.
func (n Notes) load(at pci.Address, uuid string) (Note, error) {
	data, err := os.ReadFile(n.path(at))
	if errors.Is(err, fs.ErrNotExist) {
		return Note{}, nil
	}
	var found noted
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		// Nobody knows how often it was reset: not once more.
		return Note{}, fmt.Errorf("note of resets %s: %w", n.path(at), err)
	}
	if found.BootID != n.BootID || found.UUID != uuid {
		return Note{}, nil
	}
	return found.Note, nil
}

func (n Notes) save(at pci.Address, note Note) error {
	data, err := json.Marshal(noted{n.BootID, note})
	if err == nil {
		err = os.MkdirAll(n.Dir, 0o750)
	}
	if err == nil {
		err = bootfile.Replace(n.path(at), data)
	}
	if err != nil {
		return fmt.Errorf("note of a reset: %w", err)
	}
	return nil
}

func (n Notes) forget(at pci.Address) error {
	if err := os.Remove(n.path(at)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note of resets: %w", err)
	}
	return nil
}

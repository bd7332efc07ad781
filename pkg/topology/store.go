package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Store keeps a Memory in one file of the driver's state directory.
type Store struct {
	// Path is the file; its directory must exist.
	Path string
}

// Load reads the memory. Without a file it is empty. A file that cannot be used is moved aside
// to Path + ".bad", and the error wraps ErrMemory: going on with an empty memory is safe, since
// domains of complete machines get their old values again.
func (s Store) Load() (Memory, error) {
	data, err := os.ReadFile(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Memory{}, nil
	}
	if err != nil {
		return Memory{}, fmt.Errorf("reading NVLink memory: %w", err)
	}
	m, err := Decode(data)
	if errors.Is(err, ErrNewer) {
		// A later release's: it is left for that, and this process goes on without.
		return Memory{}, fmt.Errorf("%s: %w", s.Path, err)
	}
	if err != nil {
		return Memory{}, errors.Join(fmt.Errorf("%s: %w", s.Path, err), os.Rename(s.Path, s.Path+".bad"))
	}
	return m, nil
}

// Save writes the memory so that a crash leaves the old or the new file, and tells whether
// anything had to be written. A file of a later release stays.
func (s Store) Save(m Memory) (bool, error) {
	data, err := m.Encode()
	if err != nil {
		return false, err
	}
	if old, err := os.ReadFile(s.Path); err == nil {
		if bytes.Equal(old, data) {
			return false, nil
		}
		if _, err := Decode(old); errors.Is(err, ErrNewer) {
			return false, nil
		}
	}
	if err := renameio.WriteFile(s.Path, data, 0o600, renameio.WithTempDir(filepath.Dir(s.Path))); err != nil {
		return false, fmt.Errorf("writing NVLink memory: %w", err)
	}
	dir, err := os.Open(filepath.Dir(s.Path))
	if err != nil {
		return true, fmt.Errorf("opening the directory of the NVLink memory: %w", err)
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Sync(); err != nil {
		return true, fmt.Errorf("syncing the directory of the NVLink memory: %w", err)
	}
	return true, nil
}

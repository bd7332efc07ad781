package memlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Notes say which container has which share: <dir>/<pci address>/<claim UID>_<share>. All
// processes that share the claims' records share them. Who changes those of a GPU holds its lock.
type Notes struct {
	Dir string
	// Boot is the kernel's boot id: with a reboot all cgroups go.
	Boot string
}

// note is one entry.
type note struct {
	stepParams
	Boot string `json:"boot"`
	// Cgroup is the container's; Inode tells it from a later one of that name.
	Cgroup string `json:"cgroup"`
	Inode  uint64 `json:"inode"`
}

func (n Notes) path(gpu, file string) string { return filepath.Join(n.Dir, gpu, file) }

// put writes a note.
func (n Notes) put(entry note) error {
	data, err := json.Marshal(&entry)
	if err != nil {
		return fmt.Errorf("encode who has a share of GPU %s: %w", entry.PCI, err)
	}
	path := n.path(entry.PCI.Label(), entry.file())
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("directory of limits of GPU %s: %w", entry.PCI, err)
	}
	if err := bootfile.Replace(path, data); err != nil {
		return fmt.Errorf("note who has a share of GPU %s: %w", entry.PCI, err)
	}
	return nil
}

// of lists the notes of a GPU that say something in this boot.
func (n Notes) of(gpu pci.Address) ([]note, error) {
	files, err := os.ReadDir(filepath.Join(n.Dir, gpu.Label()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look who has shares of GPU %s: %w", gpu, err)
	}
	var out []note
	for _, f := range files {
		entry, err := n.read(gpu.Label(), f.Name())
		if err != nil {
			return nil, err
		}
		if entry != nil && entry.Boot == n.Boot && entry.PCI == gpu && entry.file() == f.Name() {
			out = append(out, *entry)
		}
	}
	return out, nil
}

// read gives nil for what is not there or cannot be understood: it was torn by a loss of power.
func (n Notes) read(gpu, file string) (*note, error) {
	data, err := os.ReadFile(n.path(gpu, file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read who has a share of a GPU: %w", err)
	}
	var entry note
	if err := json.Unmarshal(data, &entry); err != nil {
		return nil, nil //nolint:nilerr // It says nothing.
	}
	return &entry, nil
}

func (n Notes) remove(gpu, file string) error {
	if err := os.Remove(n.path(gpu, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget who has a share of GPU %s: %w", gpu, err)
	}
	return nil
}

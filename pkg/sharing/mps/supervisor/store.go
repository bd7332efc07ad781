package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// entry is what lies on disk of a daemon.
type entry struct {
	// Boot is the kernel's boot id of when it was wanted.
	Boot string   `json:"boot"`
	Spec mps.Spec `json:"spec"`
	// Process has its limits; zero until then.
	Process Process `json:"process,omitzero"`
	// Restarts is how often it was started again since it was asked for.
	Restarts int `json:"restarts,omitzero"`
}

// store keeps entries in the daemons' directories. Nothing is synced to the disk: what it says
// counts in one boot only.
type store struct{ layout mps.Layout }

// names lists the daemons that have a directory.
func (s store) names() ([]string, error) {
	found, err := os.ReadDir(s.layout.Daemons())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the directories of MPS control daemons: %w", err)
	}
	var out []string
	for _, e := range found {
		if e.IsDir() && mps.CheckName(e.Name()) == nil {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// read gives no error for what is not there or cannot be used: found is false then, and the
// daemon is not wanted.
func (s store) read(name string) (e entry, found bool) {
	data, err := os.ReadFile(s.layout.Daemon(name).Spec())
	if err != nil || json.Unmarshal(data, &e) != nil || e.Spec.Validate() != nil {
		return entry{}, false
	}
	return e, true
}

// write replaces the entry in one step.
func (s store) write(name string, e entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode what MPS control daemon %s has to be: %w", name, err)
	}
	file := s.layout.Daemon(name).Spec()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of MPS control daemon %s: %w", name, err)
	}
	if err := bootfile.Replace(file, append(data, '\n')); err != nil {
		return fmt.Errorf("write what MPS control daemon %s has to be: %w", name, err)
	}
	return nil
}

// forget makes a daemon one that is not wanted.
func (s store) forget(name string) error {
	err := os.Remove(s.layout.Daemon(name).Spec())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

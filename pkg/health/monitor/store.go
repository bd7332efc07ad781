package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/bootfile"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/pci"
)

// State is what is kept over a restart.
type State struct {
	Known   []Known         `json:"known,omitempty"`
	Records []health.Record `json:"records,omitempty"`
	// Rebooted tells that it is of an earlier boot of the machine.
	Rebooted bool `json:"-"`
}

// Store is a file. It needs not survive a loss of power, after which everything is looked at anew,
// so nothing is synced.
type Store struct {
	Path string
	// BootID is the kernel's.
	BootID string
}

type stored struct {
	BootID string `json:"bootID"`
	State
}

// Load gives what was kept; nothing where there is no file.
func (s Store) Load() (State, error) {
	data, err := os.ReadFile(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("health of the GPUs: %w", err)
	}
	return s.parse(data)
}

func (s Store) parse(data []byte) (State, error) {
	var f stored
	if err := json.Unmarshal(data, &f); err != nil {
		return State{}, fmt.Errorf("health of the GPUs: %s: %w", s.Path, err)
	}
	f.Rebooted = f.BootID != s.BootID
	if f.Rebooted {
		// What GPUs are there shows by itself, and one that was ill may have been taken out.
		f.Known = nil
	}
	return f.State, nil
}

func (s Store) encode(state State) ([]byte, error) {
	return json.Marshal(stored{BootID: s.BootID, State: state})
}

func (s Store) write(data []byte) error {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o750); err != nil {
		return err
	}
	return bootfile.Replace(s.Path, data)
}

// save keeps what is known, if it differs from what is kept.
func (m *Monitor) save(ctx context.Context) {
	m.mu.Lock()
	var state State
	for at, k := range m.known {
		if r := m.records[at]; !r.Empty() {
			state.Known = append(state.Known, k)
			state.Records = append(state.Records, r)
		}
	}
	m.mu.Unlock()
	byAddress := func(a, b pci.Address) int { return a.Compare(b) }
	slices.SortFunc(state.Known, func(a, b Known) int { return byAddress(a.GPU.PCI, b.GPU.PCI) })
	slices.SortFunc(state.Records, func(a, b health.Record) int { return byAddress(a.PCI, b.PCI) })
	data, err := m.Store.encode(state)
	if err == nil && string(data) != m.saved {
		if err = m.Store.write(data); err == nil {
			m.saved = string(data)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "What is known of the GPUs' health cannot be kept; a restart would forget it")
	}
}

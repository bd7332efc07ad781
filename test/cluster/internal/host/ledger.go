package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
)

// Ledger records what clusters change for the whole machine, so that the last cluster that
// goes down can put it back: kernel settings, and mount points that had to be made. It is
// shared by all clusters; the caller holds a lock around each use.
type Ledger struct {
	// File is the record, in a folder that a reboot empties as it resets kernel settings.
	File string
	// ProcSys is /proc/sys.
	ProcSys string
}

type record struct {
	Sysctls     map[string]string `json:"sysctls"`
	Directories []string          `json:"directories"`
}

func (l Ledger) read() (record, error) {
	r := record{Sysctls: map[string]string{}}
	raw, err := os.ReadFile(l.File)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return r, fmt.Errorf("ledger of machine settings: %w", err)
	}
	return r, nil
}

func (l Ledger) write(r record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("ledger of machine settings: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(l.File), 0o755); err != nil {
		return fmt.Errorf("ledger of machine settings: %w", err)
	}
	if err := renameio.WriteFile(l.File, raw, 0o644); err != nil {
		return fmt.Errorf("ledger of machine settings: %w", err)
	}
	return nil
}

func (l Ledger) sysctlFile(name string) string {
	return filepath.Join(l.ProcSys, strings.ReplaceAll(name, ".", "/"))
}

// KeepSysctls records the present values, those already recorded excepted: they may be
// changed by now.
func (l Ledger) KeepSysctls(names ...string) error {
	r, err := l.read()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := r.Sysctls[name]; ok {
			continue
		}
		value, err := os.ReadFile(l.sysctlFile(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without it
		}
		if err != nil {
			return fmt.Errorf("kernel setting %s: %w", name, err)
		}
		r.Sysctls[name] = strings.TrimSpace(string(value))
	}
	return l.write(r)
}

// MakeDirectories makes the folders and their parents and records those that were missing,
// before it makes them.
func (l Ledger) MakeDirectories(dirs ...string) error {
	r, err := l.read()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		for d := dir; d != "/" && d != "."; d = filepath.Dir(d) {
			if _, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) && !slices.Contains(r.Directories, d) {
				r.Directories = append(r.Directories, d)
			}
		}
	}
	if err := l.write(r); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("mount point: %w", err)
		}
	}
	return nil
}

// Restore puts everything back and forgets it. Folders that somebody filled stay.
func (l Ledger) Restore() error {
	r, err := l.read()
	if err != nil {
		return err
	}
	var errs []error
	for name, value := range r.Sysctls {
		if err := os.WriteFile(l.sysctlFile(name), []byte(value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("kernel setting %s: %w", name, err))
		}
	}
	// The longest path first: children before their parents.
	slices.SortFunc(r.Directories, func(a, b string) int { return len(b) - len(a) })
	for _, dir := range r.Directories {
		err := syscall.Rmdir(dir)
		if err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("mount point %s: %w", dir, err))
		}
	}
	if len(errs) == 0 {
		if err := os.Remove(l.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Package usage finds the programs that have a claim's devices open. It is for the reconciler,
// which lets a claim alone as long as there is one. NVML knows the programs that compute; what
// else has a device node open is seen in /proc where this process shares the host's pid
// namespace. The package must not know the API server nor decide what follows.
package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/reconcile"
)

// Hardware asks the GPU driver; inventory/nvml.Library does.
type Hardware interface {
	// Processes are the programs that compute on a GPU, its partitions included.
	Processes(ctx context.Context, gpu inventory.GPUID) ([]inventory.Process, error)
	MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
}

// Openers finds programs that have device nodes open; Proc is one.
type Openers interface {
	Open(ctx context.Context, record *journal.Record) ([]string, error)
}

// Users implements reconcile.Users.
type Users struct {
	Hardware Hardware
	// Openers may be nil.
	Openers Openers
}

// Use implements reconcile.Users.
func (u Users) Use(ctx context.Context, record *journal.Record) reconcile.Use {
	var use reconcile.Use
	var errs []error
	for _, d := range record.Devices {
		if d.AdminAccess {
			continue
		}
		processes, err := u.of(ctx, d)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", d.Name, err))
		}
		for _, p := range processes {
			use.By = append(use.By, fmt.Sprintf("process %d on %s", p.PID, d.Name))
		}
	}
	if u.Openers != nil {
		open, err := u.Openers.Open(ctx, record)
		use.By = append(use.By, open...)
		errs = append(errs, err)
	}
	use.Err = errors.Join(errs...)
	return use
}

// of gives the programs on one device. What is not there is not used.
func (u Users) of(ctx context.Context, d journal.Device) ([]inventory.Process, error) {
	gpu := inventory.GPUID{PCI: d.PCI, UUID: d.GPUUUID}
	processes, err := u.Hardware.Processes(ctx, gpu)
	if d.GPUUUID == "" && errors.Is(err, inventory.ErrNoSuchGPU) {
		// A record made from a name has no board: none is that one, while there may be one in its place.
		return nil, fmt.Errorf("the record does not say which board it is: %w", err)
	}
	if err != nil || len(processes) == 0 || d.Partition == "" {
		return processes, unlessGone(err)
	}
	_, at, err := mig.ParseKey(d.Partition)
	if err != nil {
		// It may be anywhere on the GPU.
		return processes, nil //nolint:nilerr // what is not understood is taken for used
	}
	state, err := u.Hardware.MIG(ctx, gpu)
	if err != nil {
		return nil, unlessGone(err)
	}
	return slices.DeleteFunc(processes, func(p inventory.Process) bool {
		return !slices.ContainsFunc(state.Instances, func(i inventory.MIGInstance) bool {
			return i.ID == p.Instance && i.Placement == at
		})
	}), nil
}

// unlessGone drops errors that say that there is nothing to use.
func unlessGone(err error) error {
	for _, gone := range []error{inventory.ErrNoDriver, inventory.ErrNoSuchGPU, inventory.ErrLost, inventory.ErrNotSupported} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

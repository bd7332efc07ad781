package remedy

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Hardware says who uses a GPU, and lets go of it; nvml.Library does.
type Hardware interface {
	MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
	Processes(ctx context.Context, gpu inventory.GPUID) ([]inventory.Process, error)
	// Apart runs work while this process has nothing of the driver open: it would be a user, too.
	Apart(ctx context.Context, work func(context.Context) error) error
}

// Tool is the driver's own; smi.Tool is one.
type Tool interface {
	Run(ctx context.Context, limit time.Duration, args ...string) error
}

// Reporter tells people.
type Reporter interface {
	// GPUReset tells of an attempt, and why it failed.
	GPUReset(ctx context.Context, at pci.Address, attempt int, err error)
	// ResetWithheld gets, by GPU, why those that need a reset do not get one.
	ResetWithheld(ctx context.Context, why map[string]string)
}

// Config is what a Keeper works with.
type Config struct {
	Patients func() []Patient
	// OnGPU runs work under the lock of a GPU, with the records of all claims; not at all where one
	// cannot be read.
	OnGPU    func(ctx context.Context, at pci.Address, work func(context.Context, []*journal.Record) error) error
	Hardware Hardware
	Tool     Tool
	Notes    Notes
	Reporter Reporter
	// Count counts resets that were done, and that failed.
	Count func(done bool)
}

const (
	// interval is the time between two looks: a claim that ends, or a program, hints at nothing.
	interval = 10 * time.Second
	// lockLimit bounds the wait for a GPU's lock, resetLimit a run of the tool. Together they are
	// less than what a prepare waits for a lock.
	lockLimit  = 5 * time.Second
	resetLimit = 30 * time.Second
)

// Keeper resets. A nil Keeper does nothing.
type Keeper struct{ Config }

// Run looks at intervals until the context ends. A reset that has begun is not cut short.
func (k *Keeper) Run(ctx context.Context) {
	if k == nil {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		k.Look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Look resets each GPU that needs it and may be reset now, one after the other.
func (k *Keeper) Look(ctx context.Context) {
	withheld := map[string]string{}
	for _, p := range k.Patients() {
		if ctx.Err() != nil {
			return
		}
		why, err := k.see(ctx, p)
		if err != nil {
			klog.FromContext(ctx).Error(err, "A GPU that needs a reset was not reset", "gpu", p.GPU.PCI)
			why = err.Error()
		}
		if why != "" {
			withheld[p.GPU.PCI.String()] = fmt.Sprintf("GPU %s needs a reset and does not get one: %s", p.GPU.PCI, why)
		}
	}
	k.Reporter.ResetWithheld(ctx, withheld)
}

// see looks after one GPU, and says why it is not reset although it needs that.
func (k *Keeper) see(ctx context.Context, p Patient) (why string, err error) {
	note, err := k.Notes.load(p.GPU.PCI, p.GPU.UUID)
	if !p.wants() {
		// A note that a loss of power tore keeps no GPU that is well from a reset in years.
		if err != nil || note.Attempts > 0 && time.Since(note.Begun) > wellFor {
			if err := k.Notes.forget(p.GPU.PCI); err != nil {
				klog.FromContext(ctx).Error(err, "Resets of long ago are not forgotten", "gpu", p.GPU.PCI)
			}
		}
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if why := p.forbidden(); why != "" {
		return why, nil
	}
	due, why := note.due()
	if why != "" || time.Now().Before(due) {
		return why, nil
	}
	locked, cancel := context.WithTimeout(ctx, lockLimit)
	defer cancel()
	why = "records of claims cannot be read"
	err = k.OnGPU(locked, p.GPU.PCI, func(_ context.Context, records []*journal.Record) error {
		// The limit was for the lock.
		why, err = k.treat(ctx, p, note, records)
		return err
	})
	return why, err
}

// treat resets a GPU if nobody uses it. Its lock is held.
func (k *Keeper) treat(ctx context.Context, p Patient, note Note, records []*journal.Record) (why string, err error) {
	if why := held(records, p.GPU.PCI); why != "" {
		return why, nil
	}
	if p.GPU.MIG.Capable {
		mig, err := k.Hardware.MIG(ctx, p.id())
		if err != nil {
			return "", fmt.Errorf("whether it is cut into partitions: %w", err)
		}
		if why := cut(mig); why != "" {
			return why, nil
		}
	}
	processes, err := k.Hardware.Processes(ctx, p.id())
	if err != nil {
		return "", fmt.Errorf("which programs use it: %w", err)
	}
	if len(processes) > 0 {
		return fmt.Sprintf("process %d uses it", processes[0].PID), nil
	}
	return "", k.Hardware.Apart(ctx, func(ctx context.Context) error { return k.reset(ctx, p, note) })
}

// reset notes that it is about to reset, does it, and notes what came of it.
func (k *Keeper) reset(ctx context.Context, p Patient, note Note) error {
	// Cut short, a reset can leave the GPU in any state.
	ctx = context.WithoutCancel(ctx)
	note = Note{UUID: p.GPU.UUID, Attempts: note.Attempts + 1, Begun: time.Now()}
	if err := k.Notes.save(p.GPU.PCI, note); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Resetting a GPU that is ill and idle", "gpu", p.GPU.PCI, "attempt", note.Attempts)
	err := k.Tool.Run(ctx, resetLimit, "--gpu-reset", "-i", p.GPU.UUID)
	note.Ended = time.Now()
	if err != nil {
		note.Failed = err.Error()
	}
	k.Count(err == nil)
	k.Reporter.GPUReset(ctx, p.GPU.PCI, note.Attempts, err)
	return k.Notes.save(p.GPU.PCI, note)
}

package node

import (
	"fmt"
	"path/filepath"

	"github.com/gpu-dra/driver/pkg/cdi/hook"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/memlimits"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
)

// buildLimits makes sharing with limits of memory by the GPU driver.
func (w *works) buildLimits() error {
	c := w.Config
	w.limits = memlimit.New(memlimit.Config{
		Limiter: memlimits.Limiter{Lender: w.Library}, SysRoot: c.SysRoot, Dir: w.StateDir(memlimit.DirName), Boot: w.Boot,
		Hook:    filepath.Join(c.DataDir(), filepath.Base(c.LimitHook)),
		Journal: w.Journal, Locks: w.Locks, Key: prepare.GPUKey, Shares: w.Shares(),
	})
	if !w.limits.Needed(w.Journal) {
		return nil
	}
	if _, err := hook.Install(c.LimitHook, c.DataDir()); err != nil {
		return fmt.Errorf("--limit-hook: %w", err)
	}
	return nil
}

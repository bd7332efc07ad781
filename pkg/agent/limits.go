package agent

import (
	"fmt"
	"path/filepath"

	"github.com/gpu-dra/driver/pkg/cdi/hook"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/memlimits"
	"github.com/gpu-dra/driver/pkg/prepare"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
)

// buildLimits makes sharing with limits of memory by the GPU driver.
func (a *Agent) buildLimits(boot string) error {
	c := a.config
	a.limits = memlimit.New(memlimit.Config{
		Limiter: memlimits.Limiter{Lender: a.library}, SysRoot: c.SysRoot, Dir: a.stateDir(memlimit.DirName), Boot: boot,
		Hook:    filepath.Join(c.DataDir(), filepath.Base(c.LimitHook)),
		Journal: a.journal, Locks: a.locks, Key: prepare.GPUKey, Shares: a.shares(),
	})
	if !a.limits.Needed(a.journal) {
		return nil
	}
	if _, err := hook.Install(c.LimitHook, c.DataDir()); err != nil {
		return fmt.Errorf("--limit-hook: %w", err)
	}
	return nil
}

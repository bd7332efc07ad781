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
func (n *Node) buildLimits(boot string) error {
	c := n.Config
	n.limits = memlimit.New(memlimit.Config{
		Limiter: memlimits.Limiter{Lender: n.library}, SysRoot: c.SysRoot, Dir: n.stateDir(memlimit.DirName), Boot: boot,
		Hook:    filepath.Join(c.DataDir(), filepath.Base(c.LimitHook)),
		Journal: n.journal, Locks: n.locks, Key: prepare.GPUKey, Shares: n.shares(),
	})
	if !n.limits.Needed(n.journal) {
		return nil
	}
	if _, err := hook.Install(c.LimitHook, c.DataDir()); err != nil {
		return fmt.Errorf("--limit-hook: %w", err)
	}
	return nil
}

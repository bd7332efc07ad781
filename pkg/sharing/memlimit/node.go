package memlimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Limiter has the GPU driver limit memory; memlimits.Limiter does.
type Limiter interface {
	Check(ctx context.Context, gpu inventory.GPUID, cgroup string) error
	Set(ctx context.Context, gpu inventory.GPUID, cgroup string, bytes uint64) error
}

// Node is what limits need of a node.
type Node struct {
	Limiter Limiter
	// Cgroups is where this process sees the host's /sys/fs/cgroup. The driver's documentation asks
	// for the full path of a cgroup, so it has the same name here as on the host.
	Cgroups string
}

// Check tells why memory of a GPU cannot be limited, nil where it can.
func (n Node) Check(ctx context.Context, gpu inventory.GPUID) error {
	// The root of the hierarchy has this file in cgroup v2 alone (cgroups(7)).
	if _, err := os.Stat(filepath.Join(n.Cgroups, "cgroup.controllers")); err != nil {
		return fmt.Errorf("limits of memory by the GPU driver need cgroup v2 at /sys/fs/cgroup: %w", err)
	}
	if err := n.Limiter.Check(ctx, gpu, n.Cgroups); err != nil {
		return fmt.Errorf("limits of memory by the GPU driver on GPU %s: %w", gpu.PCI, err)
	}
	return nil
}

// path is where this process sees a cgroup.
func (n Node) path(cgroup string) string { return filepath.Join(n.Cgroups, cgroup) }

// inode tells a cgroup from a later one of the same name; 0 for one that is not there.
func (n Node) inode(cgroup string) (uint64, error) {
	info, err := os.Stat(n.path(cgroup))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look for cgroup %s: %w", cgroup, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return 0, fmt.Errorf("cgroup %s is no directory", cgroup)
	}
	return stat.Ino, nil
}

// inUse tells whether a cgroup is there and can have processes.
func (n Node) inUse(cgroup string, inode uint64) (bool, error) {
	now, err := n.inode(cgroup)
	if err != nil || now == 0 || now != inode {
		return false, err
	}
	// A runtime may take a moment to remove the cgroup of a container that has ended.
	events, err := os.ReadFile(filepath.Join(n.path(cgroup), "cgroup.events"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look whether cgroup %s has processes: %w", cgroup, err)
	}
	return !strings.Contains(string(events), "populated 0"), nil
}

// Probe knows which GPUs of a node can have their memory limited, from the last look at them.
type Probe struct {
	Node Node

	mu    sync.Mutex
	found map[pci.Address]finding
}

// finding is what is known of a GPU.
type finding struct {
	// why is why its memory cannot be limited; "" where it can.
	why string
	// failures is how many looks in a row said neither.
	failures int
}

// looksToFail is how many looks in a row a GPU whose memory could be limited must give no answer
// until it counts as one whose memory cannot: its shares leave the node's pool then, and a call
// that fails once is no reason.
const looksToFail = 3

// Scanner looks at the hardware; catalog.Scanner is one.
type Scanner interface {
	Scan(ctx context.Context) (inventory.Snapshot, error)
}

// Watch gives a scanner whose looks are the probe's, too.
func (p *Probe) Watch(s Scanner) Scanner { return probed{s, p} }

type probed struct {
	Scanner
	probe *Probe
}

// Scan implements Scanner.
func (p probed) Scan(ctx context.Context) (inventory.Snapshot, error) {
	s, err := p.Scanner.Scan(ctx)
	if err == nil {
		p.probe.look(ctx, s)
	}
	return s, err
}

func (p *Probe) look(ctx context.Context, s inventory.Snapshot) {
	p.mu.Lock()
	before := p.found
	p.mu.Unlock()
	now := map[pci.Address]finding{}
	for _, g := range s.GPUs {
		err := p.Node.Check(ctx, inventory.GPUID{PCI: g.PCI, UUID: g.UUID})
		known, looked := before[g.PCI]
		switch known.failures++; {
		case err == nil:
			now[g.PCI] = finding{}
		case looked && known.why == "" && !cannot(err) && known.failures < looksToFail:
			now[g.PCI] = known
		default:
			now[g.PCI] = finding{why: err.Error()}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = now
}

// cannot tells whether an error of a check says that no limit is possible, and not that this is
// not known.
func cannot(err error) bool {
	return errors.Is(err, inventory.ErrNotSupported) || errors.Is(err, os.ErrNotExist)
}

// Why says why memory of a GPU cannot be limited; "" where it can, or where the GPU was not seen.
func (p *Probe) Why(gpu pci.Address) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.found[gpu].why
}

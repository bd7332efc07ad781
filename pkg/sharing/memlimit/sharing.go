package memlimit

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// DirName is the directory of sockets and notes in the plugin's data directory.
const DirName = "limits"

// socketName has one letter, since the path of a socket is short.
const socketName = "s"

// Journal is the record of claims; journal.Store is one.
type Journal interface {
	Records
	List() ([]*journal.Record, []journal.Bad, error)
}

// Config is what a node's sharing with limits by the driver is made of.
type Config struct {
	Limiter Limiter
	// SysRoot is where this process sees the host's /sys, Dir the directory DirName, Hook where the
	// container runtime finds the hook's program, Boot the kernel's boot id.
	SysRoot, Dir, Hook, Boot string
	Journal                  Journal
	Locks                    Locks
	// Key names the lock of a GPU.
	Key func(pci.Address) lock.Key
	// Shares are the node's declarations.
	Shares []shares.Declaration
	// Interval is the time between two looks whether hooks are answered; 0 means 2 s.
	Interval time.Duration
}

const defaultInterval = 2 * time.Second

// Sharing is sharing with limits by the driver on one node: what the plugin's wiring needs of it.
type Sharing struct {
	Handler  Handler
	Executor Executor
	Owner    Owner
	// Probe is nil where no device is declared so.
	Probe   *Probe
	journal Journal
	server  Server
}

// New makes it. Where nothing is declared, what was prepared before is still served and undone.
func New(c Config) *Sharing {
	node := Node{Limiter: c.Limiter, Cgroups: filepath.Join(c.SysRoot, "fs", "cgroup")}
	notes := Notes{Dir: c.Dir, Boot: c.Boot}
	socket := filepath.Join(c.Dir, socketName)
	s := &Sharing{
		Handler:  Handler{Hook: c.Hook, Socket: socket},
		Executor: Executor{Node: node, Notes: notes},
		Owner:    Owner{Notes: notes},
		journal:  c.Journal,
		server: Server{
			Node: node, Notes: notes, Records: c.Journal, Locks: c.Locks, Key: c.Key, Path: socket,
			Interval: cmp.Or(c.Interval, defaultInterval),
		},
	}
	if slices.ContainsFunc(c.Shares, func(d shares.Declaration) bool { return d.Enforcement == device.EnforcedByDriver }) {
		s.Probe = &Probe{Node: node}
	}
	return s
}

// Needed tells whether containers with limits may be created on this node: it declares such
// shares, or a claim from when it did is prepared.
func (s *Sharing) Needed(j Journal) bool {
	if s.Probe != nil {
		return true
	}
	records, _, err := j.List()
	return err != nil || slices.ContainsFunc(records, func(r *journal.Record) bool {
		return slices.ContainsFunc(r.Devices, func(d journal.Device) bool {
			p, err := stepOf(d.Steps)
			return p != nil || err != nil
		})
	})
}

// Watch has looks at the hardware find out where limits are possible.
func (s *Sharing) Watch(scanner Scanner) Scanner {
	if s.Probe == nil {
		return scanner
	}
	return s.Probe.Watch(scanner)
}

// NoLimits says why memory of a GPU cannot be limited; "" where it can or need not.
func (s *Sharing) NoLimits(gpu pci.Address) string {
	if s.Probe == nil {
		return ""
	}
	return s.Probe.Why(gpu)
}

// Limit limits a container, see Server.
func (s *Sharing) Limit(ctx context.Context, r hook.Request) error { return s.server.Limit(ctx, r) }

// Run answers the hooks of containers until the context ends, from when one is needed: another
// instance may prepare claims so for as long as an update takes.
func (s *Sharing) Run(ctx context.Context) {
	for !s.Needed(s.journal) {
		// All records are read for that. A hook waits for as long.
		const rarely = 10
		if !wait(ctx, rarely*s.server.Interval) {
			return
		}
	}
	s.server.Run(ctx)
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster/internal/host"
	"github.com/gpu-dra/driver/test/cluster/internal/pki"
	"github.com/gpu-dra/driver/test/cluster/internal/proc"
	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

// Places on the machine that all clusters share. A reboot empties them.
const (
	machineLock = "/run/lock/test-cluster.lock"
	ledgerFile  = "/run/test-cluster/ledger.json"
)

// ErrNotUp is returned by what needs a cluster that was started.
var ErrNotUp = errors.New("the cluster is not up: run `up`")

// Cluster is one cluster of this machine, running or not. Its methods may be used from
// several processes: a lock in the state folder lets one at a time change it.
type Cluster struct {
	config  Config
	say     *progress.Printer
	super   *proc.Supervisor
	cgroups host.Cgroups
	ledger  host.Ledger
}

// New returns the cluster of that configuration; it starts nothing. Progress goes to say.
func New(c Config, say *progress.Printer) (*Cluster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Cluster{
		config: c, say: say,
		super: &proc.Supervisor{
			Table: proc.Table{Root: "/proc"}, Owner: c.State(), LogDir: c.LogDir(),
			Path: c.Bin + ":" + filepath.Join(c.Bin, "cni") + ":" + os.Getenv("PATH"),
		},
		cgroups: host.Cgroups{Root: "/sys/fs/cgroup"},
		ledger:  host.Ledger{File: ledgerFile, ProcSys: "/proc/sys"},
	}, nil
}

// LogDir holds one log per component; only a reset removes it.
func (c Config) LogDir() string { return filepath.Join(c.State(), "log") }

// identity names the cluster's link and control group on the machine.
func (c Config) identity() string { return "kc-" + c.Name }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.State()}, elements...)...)
}

// lock takes the lock file, waiting for another process that holds it.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = proc.Poll(ctx, 5*time.Minute, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s, held by another run: %w", file, err), f.Close())
	}
	// Closing releases the lock; a failure to close a file nobody wrote to means nothing.
	return func() { _ = f.Close() }, nil
}

// locked runs do while no other process changes this cluster.
func (c *Cluster) locked(ctx context.Context, do func() error) error {
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := lock(ctx, c.path("lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// onMachine runs do while no other cluster changes what all share.
func (c *Cluster) onMachine(ctx context.Context, do func() error) error {
	unlock, err := lock(ctx, machineLock)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// Up starts whatever does not run as the configuration says, and returns when every node is
// Ready. Pods of an earlier run come back.
func (c *Cluster) Up(ctx context.Context) error {
	if err := c.checkPrograms(); err != nil {
		return err
	}
	return c.locked(ctx, func() error {
		for _, dir := range []string{"log", "images"} {
			if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
				return fmt.Errorf("state folder: %w", err)
			}
		}
		p, err := c.prepareMachine(ctx)
		if err != nil {
			return err
		}
		var store *pki.Store
		if err := c.say.Step("certificates", func(func(string)) (err error) {
			store, err = c.certificates(p)
			return err
		}); err != nil {
			return err
		}
		if err := c.say.Step("control plane is ready", func(func(string)) error { return c.controlPlaneUp(ctx, p, store) }); err != nil {
			return err
		}
		for _, i := range c.wantedNodes() {
			if err := c.say.Step(NodeName(i)+" is Ready", func(note func(string)) error { return c.nodeUp(ctx, p, store, i, note) }); err != nil {
				return err
			}
		}
		return c.say.Step("service accounts", func(func(string)) error { return c.waitServiceAccount(ctx) })
	})
}

// wantedNodes is as many as configured, and those of earlier runs: the API server holds
// their pods and takes them for Ready for a while.
func (c *Cluster) wantedNodes() []int {
	var nodes []int
	for i := range maxNodes {
		_, err := os.Stat(c.nodePath(i))
		if i < c.config.Nodes || err == nil {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// prepareMachine takes an address range and makes the network in it.
func (c *Cluster) prepareMachine(ctx context.Context) (plan, error) {
	var p plan
	err := c.onMachine(ctx, func() error {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return fmt.Errorf("addresses of this machine: %w", err)
		}
		p.slot, err = claimSlot(c.config.State(), addresses)
		return err
	})
	if err != nil {
		return p, err
	}
	return p, c.network(p).Up(ctx)
}

func (c *Cluster) network(p plan) host.Network {
	return host.Network{
		Run: host.Exec, File: c.path("netns"), Link: c.config.identity(),
		Outer: p.outer(), Inner: p.node(0), Local: []netip.Addr{p.kubernetesService()},
	}
}

// current returns the addresses of a cluster that was started before.
func (c *Cluster) current() (plan, error) {
	slot, ok, err := readSlot(c.config.State())
	if err == nil && !ok {
		err = ErrNotUp
	}
	return plan{slot}, err
}

// Down ends everything of the cluster and leaves the machine as it was. The cluster's data
// and logs stay, so that Up continues where it was.
func (c *Cluster) Down(ctx context.Context) error {
	if _, err := os.Stat(c.config.State()); errors.Is(err, os.ErrNotExist) {
		c.say.Say("%s: nothing to take down", c.config.Name)
		return nil
	}
	return c.locked(ctx, func() error {
		return c.say.Step(c.config.Name+" is down", func(func(string)) error { return c.down(ctx) })
	})
}

// down goes on after a failure: as much as possible is put back.
func (c *Cluster) down(ctx context.Context) error {
	p, err := c.current()
	if errors.Is(err, ErrNotUp) {
		err = nil
	}
	errs := []error{err}
	for i := range maxNodes {
		if _, err := os.Stat(c.nodePath(i)); err == nil {
			errs = append(errs, c.nodeDown(ctx, i))
		}
	}
	// What is lost by a kill is lost by a crash as well; only etcd gets the time to end.
	for _, name := range []string{kubeScheduler, kubeControllerManager, kubeAPIServer} {
		errs = append(errs, c.super.Stop(ctx, name, syscall.SIGKILL))
	}
	errs = append(errs, c.super.Stop(ctx, etcd, syscall.SIGTERM),
		c.super.KillAll(ctx, func(proc.Process) bool { return true }),
		c.cgroups.Remove(ctx, c.config.identity()),
		c.network(p).Down(ctx),
		c.onMachine(ctx, func() error {
			all, err := c.super.Table.Scan("")
			if err != nil || slices.ContainsFunc(all, isMountHolder) {
				return err // another cluster still needs it
			}
			return c.ledger.Restore()
		}))
	return errors.Join(errs...)
}

// Reset takes the cluster down and forgets it: data, certificates, images, logs.
func (c *Cluster) Reset(ctx context.Context) error {
	if err := c.Down(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.config.State()); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	// The common parent goes with the last cluster.
	if err := os.Remove(c.config.StateRoot); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// Stop ends one component, such as "kubelet-0", by a signal, and after five seconds by
// SIGKILL. Up starts it again.
func (c *Cluster) Stop(ctx context.Context, name string, signal syscall.Signal) error {
	return c.locked(ctx, func() error {
		if _, ok, err := c.super.Find(name); err != nil || !ok {
			return errors.Join(err, fmt.Errorf("%w: no component %q runs: `status` lists them", ErrConfig, name))
		}
		return c.super.Stop(ctx, name, signal)
	})
}

// Component is one running process of a cluster.
type Component struct {
	Name string
	PID  int
	// RSS is its resident memory in bytes.
	RSS int64
}

// Status returns the running components.
func (c *Cluster) Status() ([]Component, error) {
	all, err := c.super.Table.Scan(c.config.State())
	if err != nil {
		return nil, err
	}
	var components []Component
	for _, p := range all {
		if p.Leader && !isMountHolder(p) {
			components = append(components, Component{p.Component, p.PID, c.super.Table.RSS(p)})
		}
	}
	return components, nil
}

// waitServiceAccount waits for what every pod needs and a controller makes.
func (c *Cluster) waitServiceAccount(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.super.WaitReady(ctx, kubeControllerManager, 60*time.Second, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

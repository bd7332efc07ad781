// Package care keeps watch over a node's GPUs and tells others how they are: scheduler and kubelet,
// claims and pods, exporters; and has sick ones reset where that is asked for. It wires package health
// and those below it for package node. It decides nothing about what an error means.
package care

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/claimstatus"
	"github.com/gpu-dra/driver/pkg/health/kernellog"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/health/owners"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/report"
	"github.com/gpu-dra/driver/pkg/tenancy"
	"github.com/gpu-dra/driver/pkg/topology"
)

// What is kept below the plugin's data directory.
const (
	HealthFile = "health.json"
	ResetsDir  = "resets"
	// TenantsSocket is where exporters ask who has what.
	TenantsSocket = "devices.sock"
)

// Care keeps watch over the GPUs.
type Care struct {
	*ground.Ground
	monitor *monitor.Monitor
	// kernelLog has errors that NVML does not tell; nil where it is not read.
	kernelLog *kernellog.Log
	// claimStatus tells claims of the health of their devices; nil where that is off.
	claimStatus *claimstatus.Writer
	// offered are all published devices, also those that nobody can get.
	offered atomic.Pointer[[]device.Device]
	// Tenants knows who has which device.
	Tenants  *tenancy.Register
	hardware *hardware.Collector
}

// New gives what Build makes.
func New(g *ground.Ground) *Care { return &Care{Ground: g} }

// Build makes what keeps watch. Nothing runs yet.
func (c *Care) Build() error {
	table, err := health.Builtin()
	if err != nil {
		return err
	}
	if path := c.Config.HealthTable; path != "" {
		text, err := os.ReadFile(path)
		if err == nil {
			table, err = table.Override(text)
		}
		if err != nil {
			return fmt.Errorf("--health-table: %s: %w", path, err)
		}
	}
	if path := c.Config.HealthKernelLog; path != "" {
		c.kernelLog = &kernellog.Log{Path: path, Failed: c.Reporter.KernelLogUnread}
	}
	timing := health.DefaultTiming()
	timing.Hold = c.Config.HealthHoldDown
	teller := owners.Teller{
		Records: c.Journal, Reporter: c.Reporter, Judge: func(at pci.Address, p *health.Place) health.Verdict { return c.monitor.Verdict(at, p) },
		Devices: c.allDevices, Pods: c.podsOf,
	}
	c.buildTenants()
	c.monitor = monitor.New(monitor.Config{
		Rules:  health.Rules{Table: table, Timing: timing},
		Source: c.kernelLog.Beside(vitals.Reader{Lender: c.Library}), Partitions: c.Library,
		Store: monitor.Store{Path: c.StateDir(HealthFile), BootID: c.Boot}, Holders: c,
		Reporter: c.hardware.Counting(c.Reporter), Interval: c.Config.HealthInterval, Selection: c.Config.Selection(),
		Changed: func(ctx context.Context) {
			c.Catalog.Rederive(ctx)
			teller.Tell(ctx)
			c.claimStatus.Hint()
		},
		// What goes wrong shows at the next regular look.
		Look: func(ctx context.Context) { _ = c.Catalog.Refresh(ctx) },
	})
	c.claimStatus = c.newClaimStatus()
	return nil
}

// readKernelLog has the monitor learn of errors that are in the kernel log alone.
func (c *Care) readKernelLog(ctx context.Context) {
	c.kernelLog.Run(ctx, func(ctx context.Context, m kernellog.Message) { c.monitor.Reported(ctx, m.GPU, m.XID, m.Instance) })
}

// Lead has what earlier runs knew taken in, for the instance that publishes.
func (c *Care) Lead(ctx context.Context) { c.monitor.Lead(ctx) }

// Well tells whether nothing is remembered of a GPU that is ill.
func (c *Care) Well() bool { return c.monitor.Well() }

// Watching tells the monitor of each look at the hardware.
func (c *Care) Watching(scanner catalog.Scanner) catalog.Scanner { return watched{scanner, c.monitor} }

// watched tells the monitor of each look at the hardware.
type watched struct {
	catalog.Scanner
	monitor *monitor.Monitor
}

// Scan implements catalog.Scanner.
func (w watched) Scan(ctx context.Context) (inventory.Snapshot, error) {
	s, err := w.Scanner.Scan(ctx)
	if err == nil {
		w.monitor.Scanned(ctx, s)
	}
	return s, err
}

// Taints are those of GPUs that are ill.
func (c *Care) Taints() []offer.Tainter {
	if c.monitor == nil {
		return nil
	}
	return []offer.Tainter{taints.Tainter(c.monitor.Verdict, c.Config.DriverName, c.Config.HealthEvict)}
}

// Run does, until the context ends, what the one instance does that publishes.
func (c *Care) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, run := range []func(context.Context){
		c.monitor.Run, c.claimStatus.Run, c.readKernelLog, c.newRemedy().Run, c.serveTenants,
	} {
		group.Go(func() { run(ctx) })
	}
	group.Wait()
}

// WithSick has GPUs that are ill published, and handed to nobody, while they do not answer.
func (c *Care) WithSick(derive catalog.Derive) catalog.Derive {
	return func(s inventory.Snapshot, t topology.Assignment) catalog.Derived {
		out := derive(c.monitor.Retained(s), t)
		offered := slices.Clone(out.Devices)
		c.offered.Store(&offered)
		there := map[pci.Address]bool{}
		for _, g := range s.GPUs {
			there[g.PCI] = true
		}
		out.Devices = slices.DeleteFunc(slices.Clone(out.Devices), func(d device.Device) bool { return !there[d.Identity().PCI] })
		return out
	}
}

// DeviceHealth implements kubeletplugin.HealthSource.
func (c *Care) DeviceHealth() ([]draplugin.DeviceHealth, bool) {
	if !c.monitor.Leads() {
		return nil, false
	}
	var devices []device.Device
	if offered := c.offered.Load(); offered != nil {
		devices = *offered
	}
	return taints.States(devices, c.monitor.Verdict, c.Config.NodeName, time.Now()), true
}

// Changes implements kubeletplugin.HealthSource.
func (c *Care) Changes() <-chan struct{} { return c.monitor.Changes() }

// allDevices are all published devices, by name.
func (c *Care) allDevices() map[string]device.Device {
	out := map[string]device.Device{}
	if offered := c.offered.Load(); offered != nil {
		for _, d := range *offered {
			out[d.Name()] = d
		}
	}
	return out
}

// podsOf are the pods that use a claim; none of one that is gone.
func (c *Care) podsOf(ctx context.Context, claim claims.Ref) ([]report.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, ground.APILimit)
	defer cancel()
	found, err := c.Client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil || found.UID != claim.UID {
		return nil, nil
	}
	var pods []report.Pod
	for _, r := range found.Status.ReservedFor {
		if r.Resource == "pods" {
			pods = append(pods, report.Pod{Namespace: claim.Namespace, Name: r.Name, UID: r.UID})
		}
	}
	return pods, nil
}

// Held implements monitor.Holders.
func (c *Care) Held(at pci.Address) bool {
	records, _, err := c.Journal.List()
	// To be on the safe side where they cannot be read.
	return err != nil || slices.ContainsFunc(records, func(r *journal.Record) bool {
		return slices.ContainsFunc(r.Devices, func(d journal.Device) bool { return d.PCI == at })
	})
}

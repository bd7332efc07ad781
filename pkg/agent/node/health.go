package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/kernellog"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/health/owners"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/report"
	"github.com/gpu-dra/driver/pkg/topology"
)

// buildHealth makes what keeps watch over the GPUs.
func (n *Node) buildHealth(boot string) error {
	table, err := health.Builtin()
	if err != nil {
		return err
	}
	if path := n.Config.HealthTable; path != "" {
		text, err := os.ReadFile(path)
		if err == nil {
			table, err = table.Override(text)
		}
		if err != nil {
			return fmt.Errorf("--health-table: %s: %w", path, err)
		}
	}
	if path := n.Config.HealthKernelLog; path != "" {
		n.kernelLog = &kernellog.Log{Path: path, Failed: n.Reporter.KernelLogUnread}
	}
	timing := health.DefaultTiming()
	timing.Hold = n.Config.HealthHoldDown
	teller := owners.Teller{
		Records: n.journal, Reporter: n.Reporter, Judge: func(at pci.Address, p *health.Place) health.Verdict { return n.health.Verdict(at, p) },
		Devices: n.allDevices, Pods: n.podsOf,
	}
	n.buildTenants()
	n.health = monitor.New(monitor.Config{
		Rules:  health.Rules{Table: table, Timing: timing},
		Source: n.kernelLog.Beside(vitals.Reader{Lender: n.library}), Partitions: n.library,
		Store: monitor.Store{Path: n.stateDir(healthFile), BootID: boot}, Holders: n,
		Reporter: n.hardware.Counting(n.Reporter), Interval: n.Config.HealthInterval, Selection: n.Config.Selection(),
		Changed: func(ctx context.Context) {
			n.catalog.Rederive(ctx)
			teller.Tell(ctx)
			n.claimStatus.Hint()
		},
		// What goes wrong shows at the next regular look.
		Look: func(ctx context.Context) { _ = n.catalog.Refresh(ctx) },
	})
	return nil
}

// readKernelLog has the monitor learn of errors that are in the kernel log alone.
func (n *Node) readKernelLog(ctx context.Context) {
	n.kernelLog.Run(ctx, func(ctx context.Context, m kernellog.Message) { n.health.Reported(ctx, m.GPU, m.XID, m.Instance) })
}

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

// conditions are what changes without the hardware looking different. Who changes them has the
// catalog derive again.
func (n *Node) conditions(s inventory.Snapshot) offer.Conditions {
	out := offer.Conditions{Layout: n.layout(), Taints: append(n.takenTaints(), n.stuck.Taint(n.Config.DriverName)), WithheldShares: n.withheldShares(), NoLimits: n.limits.NoLimits}
	n.layoutConditions(s, &out)
	if n.conflicts != nil {
		out.Taints = append(out.Taints, n.conflicts.Taints)
	}
	if n.health != nil {
		out.Taints = append(out.Taints, taints.Tainter(n.health.Verdict, n.Config.DriverName, n.Config.HealthEvict))
	}
	return out
}

// withSick has GPUs that are ill published, and handed to nobody, while they do not answer.
func (n *Node) withSick(derive catalog.Derive) catalog.Derive {
	return func(s inventory.Snapshot, t topology.Assignment) catalog.Derived {
		out := derive(n.health.Retained(s), t)
		offered := slices.Clone(out.Devices)
		n.offered.Store(&offered)
		there := map[pci.Address]bool{}
		for _, g := range s.GPUs {
			there[g.PCI] = true
		}
		out.Devices = slices.DeleteFunc(slices.Clone(out.Devices), func(d device.Device) bool { return !there[d.Identity().PCI] })
		return out
	}
}

// DeviceHealth implements kubeletplugin.HealthSource.
func (n *Node) DeviceHealth() ([]draplugin.DeviceHealth, bool) {
	if !n.health.Leads() {
		return nil, false
	}
	var devices []device.Device
	if offered := n.offered.Load(); offered != nil {
		devices = *offered
	}
	return taints.States(devices, n.health.Verdict, n.Config.NodeName, time.Now()), true
}

// Changes implements kubeletplugin.HealthSource.
func (n *Node) Changes() <-chan struct{} { return n.health.Changes() }

// allDevices are all published devices, by name.
func (n *Node) allDevices() map[string]device.Device {
	out := map[string]device.Device{}
	if offered := n.offered.Load(); offered != nil {
		for _, d := range *offered {
			out[d.Name()] = d
		}
	}
	return out
}

// podsOf are the pods that use a claim; none of one that is gone.
func (n *Node) podsOf(ctx context.Context, claim claims.Ref) ([]report.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, APILimit)
	defer cancel()
	found, err := n.Client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
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
func (n *Node) Held(at pci.Address) bool {
	records, _, err := n.journal.List()
	// To be on the safe side where they cannot be read.
	return err != nil || slices.ContainsFunc(records, func(r *journal.Record) bool {
		return slices.ContainsFunc(r.Devices, func(d journal.Device) bool { return d.PCI == at })
	})
}

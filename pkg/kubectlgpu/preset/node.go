package preset

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	built "github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/topology"
)

// Settings are how the nodes' driver is set up. Declarations and selections may be for some nodes
// alone; each node takes those that are for it.
type Settings struct {
	offer.Settings
	// DriverName is the name of the driver, "gpu.nvidia.com" by default.
	DriverName string
	// Include and Exclude choose the GPUs that are served.
	Include, Exclude []selection.Entry
	// Layouts is the file of declared MIG layouts, Layout the configuration in it that the nodes
	// have; empty for none.
	Layouts layout.File
	Layout  string
	// Release is that of the API server; nil is the newest that is known.
	Release *version.Version
}

// newest is the release that presets are for where none is named.
func newest() *version.Version { return version.MajorMinor(1, 37) }

// Slices gives what a node of this kind publishes, as the plugin would write it, but for the
// identity of its boards: UUIDs and serial numbers are made from the node's name, and what follows
// from them, such as the NVLink domain, is this node's own. The node has done what its settings
// ask for: it is laid out as declared. It fails where the declared layouts have no configuration of
// that name, with a *layout.UnknownConfigError.
func (m Machine) Slices(node string, s Settings) ([]*resourceapi.ResourceSlice, error) {
	snapshot := m.as(node)
	only := selection.For(node, s.Include, s.Exclude)
	snapshot.GPUs = slices.DeleteFunc(snapshot.GPUs, func(g inventory.GPU) bool {
		out := only.Verdict(selection.Identity{PCI: g.PCI, UUID: g.UUID, Product: g.ProductName}) == selection.Excluded
		if out {
			snapshot.Excluded = append(snapshot.Excluded, g.PCI)
		}
		return out
	})
	slices.SortFunc(snapshot.Excluded, pci.Address.Compare)
	// A node knows its NVLink topology from its first look, before anything is cut.
	_, memory := topology.Resolve(snapshot, topology.Memory{})
	var conditions offer.Conditions
	if s.Layout != "" {
		layouts, err := s.Layouts.Select(s.Layout, snapshot)
		if err != nil {
			return nil, err
		}
		conditions.Layouts = layouts
		snapshot.GPUs = laidOut(snapshot.GPUs, layouts)
	}
	assignment, _ := topology.Resolve(snapshot, memory)
	s.Pool, s.Shares = node, shares.For(node, s.Shares)
	release := s.Release
	if release == nil {
		release = newest()
	}
	if s.Partitions {
		conditions.Layout = built.LayoutFor(release)
		if len(s.Shares) > 0 {
			conditions.WithheldShares = shares.Withheld(release)
		}
	}
	return Objects(node, s.DriverName, s.Make(snapshot, assignment, conditions)), nil
}

// laidOut gives GPUs as they are when their layouts are applied. One whose layout cannot be had
// stays as it is.
func laidOut(gpus []inventory.GPU, layouts layout.Layouts) []inventory.GPU {
	out := slices.Clone(gpus)
	for i := range out {
		g := &out[i]
		l, declared := layouts[g.PCI]
		if !declared {
			continue
		}
		plan, err := l.Plan(*g)
		if err != nil {
			continue
		}
		if plan.Switch {
			g.MIG.Enabled, g.MIG.PendingEnabled, g.MIG.Declared = plan.Mode, plan.Mode, plan.Mode
		}
		g.MIG.Instances = slices.Clone(g.MIG.Instances)
		for _, part := range plan.Make {
			g.MIG.Instances = append(g.MIG.Instances, instance(*g, part))
		}
		slices.SortFunc(g.MIG.Instances, func(a, b inventory.MIGInstance) int { return a.Placement.Compare(b.Placement) })
	}
	return out
}

// instance is a partition that was made for a layout. Its UUID is made from the board's.
func instance(g inventory.GPU, part mig.Partition) inventory.MIGInstance {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(g.UUID+"/"+part.Label))
	return inventory.MIGInstance{
		ID: part.Placement.Start, ProfileID: part.Profile.ID, Placement: part.Placement, Declared: true,
		Compute: []inventory.MIGCompute{{Slices: part.Profile.Slices, UUID: "MIG-" + id.String()}},
	}
}

// as gives the machine's boards identities of their own.
func (m Machine) as(node string) inventory.Snapshot {
	s := m.Snapshot
	s.GPUs = slices.Clone(s.GPUs)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(node+"/"+g.PCI.String()))
		g.UUID = "GPU-" + id.String()
		if g.Serial != "" {
			const digits = 1_000_000_000_000
			g.Serial = fmt.Sprintf("1%012d", uint64(id.ID())*2654435761%digits)
		}
	}
	return s
}

// State is a cluster of n empty nodes of one kind, node-0 and up, with the chart's classes. Errors
// are those of Slices.
func (m Machine) State(n int, s Settings) (*state.State, error) {
	out := &state.State{Classes: Classes(s.DriverName)}
	for i := range n {
		made, err := m.Slices(fmt.Sprintf("node-%d", i), s)
		if err != nil {
			return nil, err
		}
		out.Slices = append(out.Slices, made...)
	}
	return out, nil
}

// Classes are the DeviceClasses that the chart makes by default, on the newest release.
func Classes(driver string) []*resourceapi.DeviceClass {
	class := func(name, kinds, shared string) *resourceapi.DeviceClass {
		c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
			`device.driver == %[1]q && device.attributes[%[1]q].?type.orValue("") %[2]s && %[3]sdevice.allowMultipleAllocations`, driver, kinds, shared)}}}
		return c
	}
	return []*resourceapi.DeviceClass{
		class("gpu.nvidia.com", `== "gpu"`, "!"), class("mig.nvidia.com", `== "mig"`, "!"), class("shared.gpu.nvidia.com", `in ["gpu", "mig"]`, ""),
	}
}

// Package shares is what a node's admin declares of devices that several claims share: which
// devices, in how many parts, and who keeps the sharers to them. It is for the settings of the
// plugin and of tools that show what a node would offer. Its functions are pure; it must not
// know claims, files or the API server.
//
// The first declaration that is for a device decides. A device that no declaration is for is
// given out whole.
package shares

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/mig"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Declaration says how some devices are shared.
type Declaration struct {
	// Nodes are the names of the nodes that it is for, with * for any text; none means all.
	Nodes []string `json:"nodes,omitempty"`
	// Devices are those that it is for.
	Devices Filter `json:"devices,omitzero"`
	// Enforcement says who keeps claims to their part of the memory.
	Enforcement device.Enforcement `json:"enforcement"`
	// Replicas is the number of parts; 0 leaves the division to the memory that claims ask for.
	Replicas int `json:"replicas,omitempty"`
	// ThreadPercentage is what each client of an MPS daemon may use of the threads, 1 to 100.
	ThreadPercentage *int `json:"threadPercentage,omitempty"`
}

// Filter selects devices: those that match one value of every list that has any. An empty filter
// selects all whole GPUs; partitions are selected by Profiles alone, or by GPU and Profiles.
type Filter struct {
	UUIDs        []string `json:"uuids,omitempty"`
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// Products are product names, with * for any text, in any case.
	Products []string `json:"products,omitempty"`
	// Indices are places in the order of PCI addresses, from 0. The order of NVML is another one
	// after a reboot; this one changes only when a board is added or taken away.
	Indices []int `json:"indices,omitempty"`
	// Profiles are those of partitions, "1g.10gb", with * for any text.
	Profiles []string `json:"profiles,omitempty"`
}

// MaxReplicas bounds the parts of one device: a control daemon serves at most 48 clients on
// architectures before Blackwell and 60 on it (NVIDIA's documentation of MPS); the other ways
// have no limit of their own, and more than that is a slip.
const MaxReplicas = 128

// maxMPSReplicas is that of control daemons.
const maxMPSReplicas = 60

// Parse reads declarations in YAML or JSON, a list. Unknown fields are errors, and so is what
// Validate finds.
func Parse(text string) ([]Declaration, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []Declaration
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("not a list of declarations of shared devices: %w", err)
	}
	if err := Validate(out); err != nil {
		return nil, err
	}
	return out, nil
}

// Validate checks every declaration and returns the first fault, with its field, its value and
// what is allowed.
func Validate(declarations []Declaration) error {
	for i, d := range declarations {
		if err := d.validate(); err != nil {
			return fmt.Errorf("declaration %d: %w", i, err)
		}
	}
	return nil
}

func (d Declaration) validate() error {
	kinds := []device.Enforcement{device.EnforcedByMPS, device.EnforcedByDriver, device.Cooperative, device.NotEnforced}
	if !slices.Contains(kinds, d.Enforcement) {
		return fmt.Errorf("enforcement: %q is not allowed: use one of %s, %s, %s, %s", d.Enforcement, kinds[0], kinds[1], kinds[2], kinds[3])
	}
	isMPS := d.Enforcement == device.EnforcedByMPS
	switch p := d.ThreadPercentage; {
	case d.Replicas < 0 || d.Replicas > MaxReplicas || d.Replicas == 1:
		return fmt.Errorf("replicas: %d is not allowed: use 2 to %d, or leave it out to divide by memory", d.Replicas, MaxReplicas)
	case isMPS && (d.Replicas == 0 || d.Replicas > maxMPSReplicas):
		return fmt.Errorf("replicas: %d is not allowed with enforcement mps, whose parts are equal: use 2 to %d", d.Replicas, maxMPSReplicas)
	case p != nil && !isMPS:
		return fmt.Errorf("threadPercentage: %d is not allowed with enforcement %s: only a control daemon limits threads (enforcement mps)", *p, d.Enforcement)
	case p != nil && (*p < 1 || *p > 100):
		return fmt.Errorf("threadPercentage: %d is not allowed: use 1 to 100", *p)
	}
	for _, name := range d.Nodes {
		if name == "" {
			return fmt.Errorf("nodes: an empty name is not allowed: use names of nodes, with * for any text")
		}
	}
	return d.Devices.validate()
}

// uuid is what NVML calls a GPU or a MIG device.
var uuid = regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z-]{1,60}$`)

func (f Filter) validate() error {
	for _, id := range f.UUIDs {
		if !uuid.MatchString(id) {
			return fmt.Errorf("devices.uuids: %q is not allowed: use UUIDs as in nvidia-smi -L, GPU-… or MIG-…", id)
		}
	}
	for _, at := range f.PCIAddresses {
		if _, err := pci.Parse(at); err != nil {
			return fmt.Errorf("devices.pciAddresses: %q is not allowed: use 0000:1a:00.0: %w", at, err)
		}
	}
	for _, n := range f.Indices {
		if n < 0 {
			return fmt.Errorf("devices.indices: %d is not allowed: use 0 for the first GPU in the order of PCI addresses", n)
		}
	}
	for field, patterns := range map[string][]string{"products": f.Products, "profiles": f.Profiles} {
		if slices.Contains(patterns, "") {
			return fmt.Errorf("devices.%s: an empty text is not allowed: use * for any", field)
		}
	}
	return nil
}

// For gives the declarations that are for a node.
func For(node string, declarations []Declaration) []Declaration {
	var out []Declaration
	for _, d := range declarations {
		if len(d.Nodes) == 0 || selection.Like(d.Nodes, node) {
			out = append(out, d)
		}
	}
	return out
}

// Of gives, for the devices of a snapshot, the function that says how one is shared. GPUs that
// are lost or excluded have their place in the order all the same: another one must not become shared.
func Of(declarations []Declaration, snapshot inventory.Snapshot) func(device.Device) *device.Sharing {
	order := snapshot.Addresses()
	return func(d device.Device) *device.Sharing {
		for _, declared := range declarations {
			if declared.Devices.matches(d, order) {
				return &device.Sharing{
					Enforcement: declared.Enforcement, Replicas: declared.Replicas, ThreadPercentage: declared.ThreadPercentage,
				}
			}
		}
		return nil
	}
}

// What a filter needs to know of devices.
type (
	whole interface {
		Hardware() inventory.GPU
	}
	partition interface {
		Parent() inventory.GPU
		Partition() mig.Partition
		UUID() string
	}
)

func (f Filter) matches(d device.Device, order []pci.Address) bool {
	var gpu inventory.GPU
	var ids []string
	switch d := d.(type) {
	case whole:
		gpu = d.Hardware()
		ids = []string{gpu.UUID}
		if len(f.Profiles) > 0 {
			return false
		}
	case partition:
		gpu = d.Parent()
		ids = []string{gpu.UUID, d.UUID()}
		named := d.UUID() != "" && slices.Contains(f.UUIDs, d.UUID())
		if !named && !selection.Like(f.Profiles, d.Partition().Profile.Name) {
			return false
		}
	default:
		return false
	}
	isAt := func(text string) bool {
		at, err := pci.Parse(text)
		return err == nil && at == gpu.PCI
	}
	isOneOf := func(id string) bool { return slices.Contains(ids, id) }
	return (len(f.UUIDs) == 0 || slices.ContainsFunc(f.UUIDs, isOneOf)) &&
		(len(f.PCIAddresses) == 0 || slices.ContainsFunc(f.PCIAddresses, isAt)) &&
		(len(f.Products) == 0 || selection.Like(f.Products, gpu.ProductName)) &&
		(len(f.Indices) == 0 || slices.Contains(f.Indices, slices.Index(order, gpu.PCI)))
}

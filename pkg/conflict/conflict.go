package conflict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Kind is what the other is.
type Kind string

// The kinds, as settings and taints name them.
const (
	DevicePlugin Kind = "device-plugin"
	DRAPlugin    Kind = "dra-plugin"
	MIGManager   Kind = "mig-manager"
)

// Kinds lists all of them.
func Kinds() []Kind { return []Kind{DevicePlugin, DRAPlugin, MIGManager} }

// Policy is what follows when one is found.
type Policy string

// The policies.
const (
	// Refuse hands out nothing new while the other is there.
	Refuse Policy = "refuse"
	// Warn tells of it.
	Warn Policy = "warn"
	// Ignore does not even tell.
	Ignore Policy = "ignore"
)

// Policies has one for each kind; an empty one is Refuse. It is a flag's value, such as
// "device-plugin=warn,mig-manager=ignore".
type Policies struct{ DevicePlugin, DRAPlugin, MIGManager Policy }

// RefuseAll refuses each.
func RefuseAll() Policies { return Policies{Refuse, Refuse, Refuse} }

// Of is the policy for a kind.
func (p Policies) Of(k Kind) Policy { return cmp.Or(*p.place(k), Refuse) }

func (p *Policies) place(k Kind) *Policy {
	switch k {
	case DevicePlugin:
		return &p.DevicePlugin
	case DRAPlugin:
		return &p.DRAPlugin
	default:
		return &p.MIGManager
	}
}

// String implements pflag.Value. Every kind is named.
func (p Policies) String() string {
	var parts []string
	for _, k := range Kinds() {
		parts = append(parts, fmt.Sprintf("%s=%s", k, p.Of(k)))
	}
	return strings.Join(parts, ",")
}

// Type implements pflag.Value.
func (p Policies) Type() string { return "policies" }

// Set implements pflag.Value. On an error nothing is changed.
func (p *Policies) Set(text string) error {
	policies := Policies{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		kind, policy, _ := strings.Cut(part, "=")
		if !slices.Contains(Kinds(), Kind(kind)) {
			return fmt.Errorf("%q: %q is unknown: use %s", part, kind, words(Kinds()))
		}
		if all := []Policy{Refuse, Warn, Ignore}; !slices.Contains(all, Policy(policy)) {
			return fmt.Errorf("%q: %q is not allowed: use %s", part, policy, words(all))
		}
		place := policies.place(Kind(kind))
		if *place != "" {
			return fmt.Errorf("%q: %s is named twice", text, kind)
		}
		*place = Policy(policy)
	}
	*p = policies
	return nil
}

func words[T ~string](all []T) string {
	var out []string
	for _, w := range all {
		out = append(out, string(w))
	}
	return strings.Join(out, ", ")
}

// Node is what is looked at of the Node object.
type Node struct {
	// Allocatable is what the node has more than none of, by resource, with the amounts. GPUs
	// among it are the kubelet's device plugins' alone.
	Allocatable map[string]string
}

// Seen is what a look at the node found.
type Seen struct {
	// Node is nil while it is not known.
	Node *Node
	// Registered are the sockets of other DRA plugins for NVIDIA's GPUs that somebody listens on,
	// by the driver's name.
	Registered map[string]string
	// MIGManager is a sign of a program that lays out GPUs by the node's labels; "" for none.
	MIGManager string
}

// Own is what matters of this driver.
type Own struct {
	// Driver is its name.
	Driver string
	// Partitions tells that it makes and removes MIG partitions for claims.
	Partitions bool
}

// Conflict is one program that is in the way.
type Conflict struct {
	Kind Kind
	// Sign is what shows it, Fix the way out.
	Sign, Fix string
	// SameSlices tells that it writes the same ResourceSlices.
	SameSlices bool
}

func (c Conflict) String() string { return c.Sign + ": " + c.Fix }

// Judge tells what of that is in the way, in the order of the kinds.
func Judge(seen Seen, own Own) []Conflict {
	var out []Conflict
	if seen.Node != nil {
		var offers []string
		for _, name := range slices.Sorted(maps.Keys(seen.Node.Allocatable)) {
			if ofGPUs(name) {
				offers = append(offers, name+": "+seen.Node.Allocatable[name])
			}
		}
		if len(offers) > 0 {
			out = append(out, Conflict{
				Kind: DevicePlugin,
				Sign: fmt.Sprintf("a device plugin on this node hands out GPUs, too (%s)", strings.Join(offers, ", ")),
				Fix: "take it off this node (GPU Operator: label nvidia.com/gpu.deploy.device-plugin=false, or devicePlugin.enabled=false) " +
					"when no pod uses it any more, or take this driver off",
			})
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(seen.Registered)) {
		out = append(out, Conflict{
			Kind: DRAPlugin, SameSlices: driver == own.Driver,
			Sign: fmt.Sprintf("another DRA driver for GPUs serves this node (%s listens on %s)", driver, seen.Registered[driver]),
			Fix:  "take one of the two off this node; this driver takes over the claims of NVIDIA's when that is gone",
		})
	}
	if seen.MIGManager != "" && own.Partitions {
		out = append(out, Conflict{
			Kind: MIGManager,
			Sign: fmt.Sprintf("a MIG manager lays out the GPUs of this node (%s), and this driver makes partitions for claims", seen.MIGManager),
			Fix: "switch it off for this node (GPU Operator: label nvidia.com/gpu.deploy.mig-manager=false, or migManager.enabled=false) and remove " +
				"the label nvidia.com/mig.config.state, or have this driver make no partitions",
		})
	}
	return out
}

// ofGPUs tells whether an extended resource is of GPUs that containers share the machine's driver
// for: nvidia.com/gpu, also under the names that device plugins give to shared ones and to parts,
// and nvidia.com/mig-*. Others of that domain are network cards, and GPUs that are passed through.
func ofGPUs(name string) bool {
	of, ok := strings.CutPrefix(name, "nvidia.com/")
	return ok && (strings.HasPrefix(of, "gpu") || strings.HasPrefix(of, "mig-"))
}

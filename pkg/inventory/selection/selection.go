// Package selection says which GPUs of a node the driver serves: the admin's lists of what is included
// and what is excluded. It is for the looks at the hardware, which leave excluded GPUs alone, and for
// the plugin's settings. Its functions are pure; it must not know NVML, devices or the API server.
//
// A GPU is excluded when an entry of the second list fits it, or when the first list has entries for
// the node and none of them fits. An entry fits when one value of each of its lists does.
package selection

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Entry describes GPUs.
type Entry struct {
	// Nodes are the names of the nodes that it is for, with * for any text; none means all.
	Nodes        []string `json:"nodes,omitempty"`
	UUIDs        []string `json:"uuids,omitempty"`
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// Products are product names, with * for any text, in any case.
	Products []string `json:"products,omitempty"`
}

// Selection is what counts on one node. The zero value serves every GPU.
type Selection struct {
	Include, Exclude []Entry
}

// Identity is what is known of a GPU. Texts are empty as long as they are not known.
type Identity struct {
	PCI           pci.Address
	UUID, Product string
}

// Verdict is what a selection says of a GPU.
type Verdict int

// The verdicts.
const (
	// Undecided: more has to be known of the GPU.
	Undecided Verdict = iota
	Served
	Excluded
)

// String names the verdict.
func (v Verdict) String() string { return [...]string{"undecided", "served", "excluded"}[v] }

// Parse reads entries in YAML or JSON, a list. Unknown fields are errors, as are values that can
// fit no GPU and entries that say nothing.
func Parse(text string) ([]Entry, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []Entry
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("not a list of entries with nodes, uuids, pciAddresses and products: %w", err)
	}
	for i, e := range out {
		if err := e.validate(); err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return out, nil
}

// uuid is what NVML calls a GPU.
var uuid = regexp.MustCompile(`^GPU-[0-9A-Za-z-]{1,60}$`)

func (e Entry) validate() error {
	if len(e.Nodes)+len(e.UUIDs)+len(e.PCIAddresses)+len(e.Products) == 0 {
		return fmt.Errorf("it says nothing: give nodes, uuids, pciAddresses or products")
	}
	for _, id := range e.UUIDs {
		if !uuid.MatchString(id) {
			return fmt.Errorf("uuids: %q is not allowed: use UUIDs of GPUs as in nvidia-smi -L, GPU-…", id)
		}
	}
	for _, at := range e.PCIAddresses {
		if _, err := pci.Parse(at); err != nil {
			return fmt.Errorf("pciAddresses: %q is not allowed: use 0000:1a:00.0", at)
		}
	}
	if slices.Contains(e.Nodes, "") {
		return fmt.Errorf("nodes: an empty text is not allowed: use names of nodes, with * for any text")
	}
	if slices.Contains(e.Products, "") {
		return fmt.Errorf("products: an empty text is not allowed: use names as in nvidia-smi -L, with * for any text")
	}
	return nil
}

// For gives what counts on a node.
func For(node string, include, exclude []Entry) Selection {
	others := func(e Entry) bool { return len(e.Nodes) > 0 && !Like(e.Nodes, node) }
	return Selection{
		Include: slices.DeleteFunc(slices.Clone(include), others),
		Exclude: slices.DeleteFunc(slices.Clone(exclude), others),
	}
}

// Everything tells that every GPU is served, whatever is known of it.
func (s Selection) Everything() bool { return len(s.Include)+len(s.Exclude) == 0 }

// Verdict judges a GPU by what is known of it. To know more never changes a verdict but Undecided.
func (s Selection) Verdict(id Identity) Verdict {
	in := yes
	if len(s.Include) > 0 {
		in = anyOf(s.Include, id)
	}
	switch out := anyOf(s.Exclude, id); {
	case out == yes || in == no:
		return Excluded
	case out == no && in == yes:
		return Served
	}
	return Undecided
}

// fit is whether an entry fits a GPU of which not everything is known.
type fit int

const (
	no fit = iota
	maybe
	yes
)

// anyOf tells whether one of the entries fits.
func anyOf(entries []Entry, id Identity) fit {
	best := no
	for _, e := range entries {
		best = max(best, e.fits(id))
	}
	return best
}

func (e Entry) fits(id Identity) fit {
	isAt := func(text string) bool {
		at, err := pci.Parse(text)
		return err == nil && at == id.PCI
	}
	same := func(text string) bool { return strings.EqualFold(text, id.UUID) }
	return min(
		fitOf(e.PCIAddresses, true, func() bool { return slices.ContainsFunc(e.PCIAddresses, isAt) }),
		fitOf(e.UUIDs, id.UUID != "", func() bool { return slices.ContainsFunc(e.UUIDs, same) }),
		fitOf(e.Products, id.Product != "", func() bool { return Like(e.Products, id.Product) }),
	)
}

// fitOf tells whether one value of a list fits; a list without values does.
func fitOf(list []string, known bool, fits func() bool) fit {
	switch {
	case len(list) == 0:
		return yes
	case !known:
		return maybe
	case fits():
		return yes
	}
	return no
}

// Like tells whether a text fits one of the patterns, in which * is any text, in any case.
func Like(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		parts := strings.Split(strings.ToLower(pattern), "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		// A line break is a text, too.
		ok, err := regexp.MatchString("(?s)^"+strings.Join(parts, ".*")+"$", strings.ToLower(text))
		return err == nil && ok
	})
}

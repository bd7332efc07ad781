package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// List is what the commands get and tree show.
type List struct {
	Items  []GPU  `json:"items"`
	Totals Totals `json:"totals"`
	// Notes say what is not known, and which pools are incomplete.
	Notes []string `json:"notes,omitempty"`
	// All shows also the partitions that nobody has.
	All bool `json:"-"`
}

// Kind names the object.
func (List) Kind() string { return "GPUList" }

// shown are the partitions that the text tells of. There may be hundreds that nobody has.
func (l List) shown(g GPU) []Device {
	if l.All {
		return g.Partitions
	}
	return slices.DeleteFunc(slices.Clone(g.Partitions), func(d Device) bool {
		return !d.used() && d.UUID == "" && len(d.Taints) == 0
	})
}

// Text writes a table of devices and the totals.
func (l List) Text(out io.Writer, wide bool) error {
	t := output.NewTable("NODE", "DEVICE", "PRODUCT", "MEMORY", "NVLINK DOMAIN", "STATE", "OWNER", "+NUMA", "+PCIE ROOT", "+UUID", "+SHARING")
	row := func(g GPU, d Device, product, domain string) {
		t.Row(g.Node, d.Name, product, bytes(d.Memory), domain, d.state(), d.owner(), g.NUMA, g.Root, d.UUID, d.Sharing)
	}
	for _, g := range l.Items {
		if g.Whole != nil {
			row(g, *g.Whole, g.Product, short(g.Domain))
		}
		for _, p := range l.shown(g) {
			row(g, p, p.Profile, "")
		}
		if g.Whole == nil && len(l.shown(g)) == 0 {
			t.Row(g.Node, g.Name, g.Product, "", "", fmt.Sprintf("partitioned, %d free", freePartitions(g)), "", g.NUMA, g.Root, g.UUID, "")
		}
	}
	w := output.NewWriter(out)
	if len(l.Items) == 0 {
		w.Printf("No GPUs are published. `kubectl gpu doctor` looks for the reason.\n")
	} else if err := t.Write(out, wide); err != nil {
		return err
	}
	l.Totals.write(w)
	l.notes(w)
	return w.Err
}

func (l List) notes(w *output.Writer) {
	for _, n := range l.Notes {
		w.Printf("Note: %s\n", n)
	}
}

func freePartitions(g GPU) int {
	n := 0
	for _, p := range g.Partitions {
		if p.Free {
			n++
		}
	}
	return n
}

// state is one word of how the device is, or two.
func (d Device) state() string {
	var words []string
	switch {
	case len(d.source.Exclusive()) > 0 && d.source.Shared():
		words = append(words, fmt.Sprintf("shared by %d", len(d.source.Exclusive())))
	case len(d.source.Exclusive()) > 0:
		words = append(words, "in use")
	case d.Blocked != "":
		words = append(words, "partitioned")
	case len(d.source.Repelling()) == 0 && d.source.Shared():
		words = append(words, "shared by 0")
	case len(d.source.Repelling()) == 0:
		words = append(words, "free")
	}
	for _, t := range d.source.Repelling() {
		words = append(words, "tainted "+t.Key)
	}
	return strings.Join(words, ", ")
}

func (d Device) owner() string {
	var all []string
	for _, o := range d.Owners {
		all = append(all, o.String())
	}
	return strings.Join(all, "; ")
}

func taint(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}

// short keeps what tells domains apart, like an abbreviated commit; fabric names keep their clique.
func short(domain string) string {
	const most = 12
	if len(domain) <= most {
		return domain
	}
	if at := strings.LastIndex(domain, "."); at > 0 {
		return domain[:8] + "…" + domain[at:]
	}
	return domain[:most]
}

func bytes(n int64) string {
	if n == 0 {
		return ""
	}
	const mebi, gibi = 1 << 20, 1 << 30
	if n >= gibi {
		return fmt.Sprintf("%.4gGi", float64(n)/gibi)
	}
	if n >= mebi {
		return fmt.Sprintf("%.4gMi", float64(n)/mebi)
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

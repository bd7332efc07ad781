package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// Description is everything known of one GPU or device.
type Description struct {
	Items []Detail `json:"items"`
}

// Detail is one device.
type Detail struct {
	Node   string `json:"node,omitempty"`
	Device Device `json:"device"`
	// Attributes and Capacity are as published.
	Attributes map[string]string `json:"attributes"`
	Capacity   map[string]string `json:"capacity,omitempty"`
	// Counters are what it consumes: "set/counter" to amount.
	Counters map[string]string `json:"consumesCounters,omitempty"`
}

// Kind names the object.
func (Description) Kind() string { return "DeviceDescription" }

// Describe finds the devices that a name means: a device's name, UUID or PCI address, or a node. Of
// a node and of a GPU, only the partitions that somebody has, or that are there in any case, are told.
func Describe(s *state.State, name string) (Description, error) {
	var d Description
	for _, found := range s.Devices() {
		exact := found.Name == name
		part := found.Kind() == partition && len(found.Owners) == 0 && found.Text("uuid") == ""
		near := name != "" && slices.Contains([]string{found.Node, bus(found), found.Text("uuid"), found.Text("parentUUID"), wholeName(found)}, name)
		if exact || near && !part {
			d.Items = append(d.Items, detail(found))
		}
	}
	if len(d.Items) == 0 {
		return d, fmt.Errorf("no device, GPU or node is called %q; `kubectl gpu get --all` lists the names", name)
	}
	return d, nil
}

func detail(d state.Device) Detail {
	out := Detail{Node: d.Node, Device: show(d), Attributes: map[string]string{}, Capacity: map[string]string{}, Counters: map[string]string{}}
	for name, v := range d.Spec.Attributes {
		out.Attributes[string(name)] = state.TextOf(v)
	}
	for name, c := range d.Spec.Capacity {
		out.Capacity[string(name)] = c.Value.String()
	}
	for _, use := range d.Spec.ConsumesCounters {
		for name, c := range use.Counters {
			out.Counters[use.CounterSet+"/"+name] = c.Value.String()
		}
	}
	return out
}

// Text writes one block for each device.
func (d Description) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	for i, item := range d.Items {
		if i > 0 {
			w.Printf("\n")
		}
		item.write(w, wide)
	}
	return w.Err
}

func (d Detail) write(w *output.Writer, wide bool) {
	field := func(name, value string) {
		if value != "" {
			w.Printf("%-12s %s\n", name+":", value)
		}
	}
	field("Name", d.Device.Name)
	field("Node", d.Node)
	field("Driver", d.Device.Driver)
	field("Pool", d.Device.Pool)
	field("State", d.Device.state())
	field("Blocked", d.Device.Blocked)
	field("Sharing", d.Device.Sharing)
	field("Taints", strings.Join(d.Device.Taints, ", "))
	if len(d.Device.Owners) > 0 {
		w.Printf("Owners:\n")
	}
	for _, o := range d.Device.Owners {
		w.Printf("  %s, request %s%s\n", o, o.Request, amounts(o.Capacity))
	}
	section(w, "Attributes", d.Attributes)
	section(w, "Capacity", d.Capacity)
	if wide {
		section(w, "Counters", d.Counters)
	}
}

func amounts(capacity map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		all = append(all, name+" "+capacity[name])
	}
	if len(all) == 0 {
		return ""
	}
	return ", has " + strings.Join(all, ", ")
}

func section(w *output.Writer, title string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	w.Printf("%s:\n", title)
	width := 0
	for name := range values {
		width = max(width, len(name))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		w.Printf("  %-*s  %s\n", width, name, values[name])
	}
}

// Show makes the list of a cluster's GPUs with its totals and notes.
func Show(s *state.State, driver string, keep func(GPU) bool) List {
	gpus := GPUs(s, driver)
	if keep != nil {
		gpus = slices.DeleteFunc(gpus, func(g GPU) bool { return !keep(g) })
	}
	l := List{Items: gpus, Totals: Sum(gpus)}
	for _, p := range s.Incomplete() {
		l.Notes = append(l.Notes, p.String())
	}
	for _, u := range s.Unread {
		l.Notes = append(l.Notes, u.String())
	}
	return l
}

package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Kind names the object.
func (Explanation) Kind() string { return "Explanation" }

// Text writes verdict, reason and change, and a table of what each node had left after each step;
// wide adds what each step removed.
func (x Explanation) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	w.Printf("%s: %s\n", x.Subject, x.Verdict)
	field := func(name, value string) {
		if value != "" {
			w.Printf("%-9s %s\n", name+":", value)
		}
	}
	field("Reason", x.Reason)
	change := x.Change
	if change == "" && x.Verdict == DoesNotFit && len(x.Nodes) > 0 {
		change = "none by itself: no single one that was tried makes it fit"
	}
	field("Change", change)
	field("Devices", strings.Join(x.Devices, ", "))
	for _, e := range x.Events {
		field("Event", e)
	}
	if len(x.Nodes) == 0 || w.Err != nil {
		return w.Err
	}
	w.Printf("\n")
	if err := x.table().Write(out, wide); err != nil {
		return err
	}
	if wide {
		x.steps(w)
	}
	return w.Err
}

// table shows how many devices were left after each kind of step. Equal nodes share a row.
func (x Explanation) table() *output.Table {
	kinds := []StepKind{StepClass, StepSelector, StepCapacity, StepTaint, StepInUse, StepCounter, StepConstraint}
	columns := []string{"NODES", "REQUEST", "WANTS", "DEVICES"}
	for _, k := range kinds {
		columns = append(columns, strings.ToUpper(string(k)))
	}
	t := output.NewTable(append(columns, "VERDICT")...)
	type row struct {
		cells []string
		nodes []string
	}
	var rows []*row
	by := map[string]*row{}
	add := func(node string, cells []string) {
		key := strings.Join(cells, "\x00")
		if by[key] == nil {
			by[key] = &row{cells: cells}
			rows = append(rows, by[key])
		}
		by[key].nodes = append(by[key].nodes, node)
	}
	for _, n := range x.Nodes {
		if len(n.Requests) == 0 {
			add(n.Name, append(make([]string, len(columns)-1), string(n.Verdict)+": "+n.Reason))
		}
		for _, r := range n.Requests {
			cells := []string{r.Name, fmt.Sprint(r.Want), fmt.Sprint(r.Devices)}
			for _, k := range kinds {
				cells = append(cells, r.leftAfter(k))
			}
			add(n.Name, append(cells, r.verdict(n)))
		}
	}
	for _, r := range rows {
		t.Row(append([]string{nodes(r.nodes)}, r.cells...)...)
	}
	return t
}

// leftAfter is what a kind of step left; empty when it removed nothing.
func (r Request) leftAfter(kind StepKind) string {
	text := ""
	for _, s := range r.Steps {
		if s.Kind == kind {
			text = fmt.Sprint(s.Left)
			if s.Decisive {
				text += " !"
			}
		}
	}
	return text
}

func (r Request) verdict(n Node) string {
	switch s := r.decisive(); {
	case s != nil:
		return string(s.Kind)
	case n.Verdict == Fits:
		return string(Fits)
	case n.Verdict == Undecided:
		return string(Undecided)
	}
	return "can be met by itself"
}

func nodes(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}

func (x Explanation) steps(w *output.Writer) {
	for _, n := range x.Nodes {
		w.Printf("\n%s: %s\n", n.Name, n.Verdict)
		if n.Reason != "" {
			w.Printf("  %s\n", n.Reason)
		}
		for _, r := range n.Requests {
			w.Printf("  request %s wants %d of %d devices\n", r.Name, r.Want, r.Devices)
			for _, s := range r.Steps {
				mark := " "
				if s.Decisive {
					mark = "!"
				}
				w.Printf("  %s %-10s removes %d, leaves %d  %s\n", mark, s.Kind, s.Removed, s.Left, s.Detail)
			}
		}
	}
}

package view

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Tree shows a list by node, NVLink domain, GPU and partition.
type Tree struct{ List }

// Kind names the object.
func (Tree) Kind() string { return "GPUTree" }

// branch is one line of the tree and what hangs below it.
type branch struct {
	text string
	sub  []branch
}

// Text writes the tree and the totals.
func (t Tree) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	for _, node := range groupBy(t.Items, func(g GPU) string { return g.Node }) {
		w.Printf("%s  %s\n", node.key, freeOf(node.gpus))
		domains := groupBy(node.gpus, func(g GPU) string { return g.Domain })
		var top []branch
		for _, d := range domains {
			top = append(top, t.domain(d.key, d.gpus, wide))
		}
		hang(w, "", top)
	}
	if len(t.Items) == 0 {
		w.Printf("No GPUs are published. `kubectl gpu doctor` looks for the reason.\n")
	}
	t.Totals.write(w)
	t.notes(w)
	return w.Err
}

func (t Tree) domain(value string, gpus []GPU, wide bool) branch {
	b := branch{text: "no NVLink domain"}
	if value != "" {
		if !wide {
			value = short(value)
		}
		b.text = "NVLink domain " + value
		if size := atoi(gpus[0].DomainSize); size > len(gpus) {
			b.text += fmt.Sprintf(" (%d of %d members)", len(gpus), size)
		}
	}
	b.text += "  " + freeOf(gpus)
	for _, g := range gpus {
		b.sub = append(b.sub, t.gpu(g, wide))
	}
	return b
}

func (t Tree) gpu(g GPU, wide bool) branch {
	line := []string{g.Name}
	if g.Product != "" {
		line = append(line, g.Product)
	}
	if g.Whole != nil {
		line = append(line, g.Whole.words()...)
	} else {
		line = append(line, fmt.Sprintf("partitioned, %s free", count(freePartitions(g), "place")))
	}
	if wide {
		line = append(line, "NUMA "+g.NUMA, g.Root, g.UUID)
	}
	b := branch{text: strings.Join(line, "  ")}
	for _, p := range t.shown(g) {
		b.sub = append(b.sub, branch{text: strings.Join(append([]string{p.Name, p.Profile}, p.words()...), "  ")})
	}
	return b
}

// words are memory, state, owner and sharing.
func (d Device) words() []string {
	var out []string
	for _, word := range []string{bytes(d.Memory), d.state(), d.owner(), d.Sharing} {
		if word != "" {
			out = append(out, word)
		}
	}
	return out
}

func hang(w *output.Writer, indent string, branches []branch) {
	for i, b := range branches {
		joint, below := "├── ", "│   "
		if i == len(branches)-1 {
			joint, below = "└── ", "    "
		}
		w.Printf("%s%s%s\n", indent, joint, b.text)
		hang(w, indent+below, b.sub)
	}
}

type group struct {
	key  string
	gpus []GPU
}

// groupBy keeps the order of first appearance; those without a key come last.
func groupBy(gpus []GPU, key func(GPU) string) []group {
	var out []group
	at := map[string]int{}
	var rest []GPU
	for _, g := range gpus {
		k := key(g)
		if k == "" {
			rest = append(rest, g)
			continue
		}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, group{key: k})
		}
		out[i].gpus = append(out[i].gpus, g)
	}
	if len(rest) > 0 {
		out = append(out, group{gpus: rest})
	}
	return out
}

func freeOf(gpus []GPU) string {
	free := 0
	for _, g := range gpus {
		if g.free() {
			free++
		}
	}
	return fmt.Sprintf("%s, %d free", count(len(gpus), "GPU"), free)
}

package prepare

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Chain is several handlers of one kind of device: first what makes the device, then each way
// of sharing it. A handler that has nothing to do with a device gives no steps and no edits.
type Chain []Handler

// Steps gives those of all handlers, in order: what makes a device comes before what is set on it.
func (c Chain) Steps(d claims.Device) ([]journal.Step, error) {
	var out []journal.Step
	for _, h := range c {
		steps, err := h.Steps(d)
		if err != nil {
			return nil, err
		}
		out = append(out, steps...)
	}
	return out, nil
}

// Edits puts those of all handlers together. Each gets the steps of all, and finds its own by
// their kind.
func (c Chain) Edits(d claims.Device, steps []journal.Step) (cdi.Edits, error) {
	var out cdi.Edits
	for _, h := range c {
		edits, err := h.Edits(d, slices.Clone(steps))
		if err != nil {
			return cdi.Edits{}, err
		}
		out.Nodes = append(out.Nodes, edits.Nodes...)
		out.Env = append(out.Env, edits.Env...)
		out.Mounts = append(out.Mounts, edits.Mounts...)
		out.Hooks = append(out.Hooks, edits.Hooks...)
	}
	return out, nil
}

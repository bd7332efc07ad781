package agent

import (
	"context"

	"github.com/gpu-dra/driver/pkg/cluster"
	"github.com/gpu-dra/driver/pkg/slices"
)

// followRelease learns of which release the API server is until the context ends. A node that
// does not cut its GPUs publishes the same to all, and does not ask.
func (a *Agent) followRelease(ctx context.Context) {
	if !a.partitions() {
		return
	}
	a.release.Ask = cluster.Asking(a.client.Discovery().RESTClient())
	a.release.Changed = a.catalog.Rederive
	a.release.Run(ctx)
}

// layout is that of the slices, by what is known of the API server.
func (a *Agent) layout() slices.Layout { return slices.LayoutFor(a.release.Release()) }

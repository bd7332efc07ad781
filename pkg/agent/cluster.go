package agent

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/cluster"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/slices"
)

// learnRelease asks once of which release the API server is, where it decides what the node may
// offer at all: without an answer that is less, until there is one.
func (a *Agent) learnRelease(ctx context.Context) {
	a.release.Ask = cluster.Asking(a.client.Discovery().RESTClient())
	if !a.sharesPartitions() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiLimit)
	defer cancel()
	if err := a.release.Look(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Devices are not offered in shares until the API server's release is known")
	}
}

// followRelease learns of which release the API server is until the context ends. A node that
// does not cut its GPUs publishes the same to all, and does not ask.
func (a *Agent) followRelease(ctx context.Context) {
	if !a.partitions() {
		return
	}
	a.release.Changed = a.catalog.Rederive
	a.release.Run(ctx)
}

// layout is that of the slices, by what is known of the API server.
func (a *Agent) layout() slices.Layout { return slices.LayoutFor(a.release.Release()) }

// sharesPartitions tells whether the node cuts GPUs and has shares.
func (a *Agent) sharesPartitions() bool { return a.partitions() && len(a.shares()) > 0 }

// withheldShares is why shares are not offered, by what is known of the API server.
func (a *Agent) withheldShares() string {
	if !a.sharesPartitions() {
		return ""
	}
	return shares.Withheld(a.release.Release())
}

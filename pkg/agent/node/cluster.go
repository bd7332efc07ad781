package node

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/cluster"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/slices"
)

// release is that of the API server.
type release struct {
	*ground.Ground
	watch cluster.Watch
}

// learn asks once of which release the API server is, where it decides what the node may
// offer at all: without an answer that is less, until there is one.
func (r *release) learn(ctx context.Context) {
	r.watch.Ask = cluster.Asking(r.Client.Discovery().RESTClient())
	if !r.sharesPartitions() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ground.APILimit)
	defer cancel()
	if err := r.watch.Look(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Devices are not offered in shares until the API server's release is known")
	}
}

// follow learns of which release the API server is until the context ends. A node that
// does not cut its GPUs publishes the same to all, and does not ask.
func (r *release) follow(ctx context.Context) {
	if !r.Partitions() {
		return
	}
	r.watch.Changed = r.Catalog.Rederive
	r.watch.Run(ctx)
}

// layout is that of the slices, by what is known of the API server.
func (r *release) layout() slices.Layout { return slices.LayoutFor(r.watch.Release()) }

// sharesPartitions tells whether the node cuts GPUs and has shares.
func (r *release) sharesPartitions() bool { return r.Partitions() && len(r.Shares()) > 0 }

// withheldShares is why shares are not offered, by what is known of the API server.
func (r *release) withheldShares() string {
	if !r.sharesPartitions() {
		return ""
	}
	return shares.Withheld(r.watch.Release())
}

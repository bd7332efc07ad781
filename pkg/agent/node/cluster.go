package node

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/cluster"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/slices"
)

// learnRelease asks once of which release the API server is, where it decides what the node may
// offer at all: without an answer that is less, until there is one.
func (n *Node) learnRelease(ctx context.Context) {
	n.release.Ask = cluster.Asking(n.Client.Discovery().RESTClient())
	if !n.sharesPartitions() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, APILimit)
	defer cancel()
	if err := n.release.Look(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Devices are not offered in shares until the API server's release is known")
	}
}

// followRelease learns of which release the API server is until the context ends. A node that
// does not cut its GPUs publishes the same to all, and does not ask.
func (n *Node) followRelease(ctx context.Context) {
	if !n.partitions() {
		return
	}
	n.release.Changed = n.catalog.Rederive
	n.release.Run(ctx)
}

// layout is that of the slices, by what is known of the API server.
func (n *Node) layout() slices.Layout { return slices.LayoutFor(n.release.Release()) }

// sharesPartitions tells whether the node cuts GPUs and has shares.
func (n *Node) sharesPartitions() bool { return n.partitions() && len(n.shares()) > 0 }

// withheldShares is why shares are not offered, by what is known of the API server.
func (n *Node) withheldShares() string {
	if !n.sharesPartitions() {
		return ""
	}
	return shares.Withheld(n.release.Release())
}

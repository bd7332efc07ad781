package node

import (
	"context"
	"errors"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/conflict/look"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/takeover"
)

// neighbours are others that hand out, or handed out, the GPUs of this node.
type neighbours struct {
	*ground.Ground
	guard *guard.Watch
	// readable is set when the API server let this process read its Node.
	readable *atomic.Bool
	// taken are the devices of claims of a former driver.
	taken atomic.Pointer[takeover.Taken]
}

// build makes what looks for others. A node with declared layouts declares.
func (n *neighbours) build(declares bool) {
	c := n.Config
	n.guard = guard.New(guard.Config{
		// Declared layouts are not applied beside a MIG manager: that is for package declaration.
		Own:      conflict.Own{Driver: c.DriverName, Partitions: c.MIGDevices == config.MIGOnDemand && !declares},
		Policies: c.Conflicts,
		Looker: &look.Looker{
			Nodes: noting{n.Client.CoreV1().Nodes(), n.readable}, Node: c.NodeName, Registry: c.KubeletRegistryDir,
			Driver: c.DriverName, Alone: c.PodUID == "",
		},
		Reporter: n.Reporter,
		Interval: c.RescanInterval,
		Hold:     n.Gate.Hold,
		Gone:     n.succeed,
		Changed: func(ctx context.Context) {
			n.Catalog.Rederive(ctx)
			n.Again()
		},
	})
}

// noting notes that a Node was read.
type noting struct {
	look.NodeGetter
	readable *atomic.Bool
}

// Get implements look.NodeGetter.
func (g noting) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error) {
	node, err := g.NodeGetter.Get(ctx, name, options)
	if err == nil {
		g.readable.Store(true)
	}
	return node, err
}

// taints are those of devices that others have, or may have.
func (n *neighbours) taints() []offer.Tainter {
	out := n.takenTaints()
	if n.guard != nil {
		out = append(out, n.guard.Taints)
	}
	return out
}

// succeed takes over what another driver of the name has left.
func (n *neighbours) succeed(ctx context.Context) {
	n.takeOver(ctx, n.Catalog.View())
	if err := n.taintTaken(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "It is not known which devices a former driver's claims have")
	}
}

// lookForTwin looks once whether another driver of this name listens, for who has no API server, and
// knows that no plugin of this driver runs.
func (n *neighbours) lookForTwin(ctx context.Context) {
	nothing := func(context.Context) {}
	n.guard = guard.New(guard.Config{
		Own: conflict.Own{Driver: n.Config.DriverName}, Reporter: n.Reporter,
		Looker:  &look.Looker{Nodes: unknown{}, Registry: n.Config.KubeletRegistryDir, Driver: n.Config.DriverName},
		Changed: nothing, Gone: nothing, Hold: func(error) {},
	})
	n.guard.Look(ctx)
}

// unknown is an API server that cannot be asked.
type unknown struct{}

// Get implements look.NodeGetter.
func (unknown) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return nil, errors.New("there is no API server")
}

package node

import (
	"context"
	"errors"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/conflict/guard"
	"github.com/gpu-dra/driver/pkg/conflict/look"
)

// buildConflicts makes what looks for others that hand out the GPUs of this node.
func (n *Node) buildConflicts() {
	c := n.Config
	n.conflicts = guard.New(guard.Config{
		// Declared layouts are not applied beside a MIG manager: that is for package declaration.
		Own:      conflict.Own{Driver: c.DriverName, Partitions: c.MIGDevices == config.MIGOnDemand && !n.declares()},
		Policies: c.Conflicts,
		Looker: &look.Looker{
			Nodes: noting{n.Client.CoreV1().Nodes(), &n.nodeReadable}, Node: c.NodeName, Registry: c.KubeletRegistryDir,
			Driver: c.DriverName, Alone: c.PodUID == "",
		},
		Reporter: n.Reporter,
		Interval: c.RescanInterval,
		Hold:     n.Gate.Hold,
		Gone:     n.succeed,
		Changed: func(ctx context.Context) {
			n.catalog.Rederive(ctx)
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

// succeed takes over what another driver of the name has left.
func (n *Node) succeed(ctx context.Context) {
	n.takeOver(ctx, n.catalog.View())
	if err := n.taintTaken(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "It is not known which devices a former driver's claims have")
	}
}

// lookForTwin looks once whether another driver of this name listens, for who has no API server, and
// knows that no plugin of this driver runs.
func (n *Node) lookForTwin(ctx context.Context) {
	nothing := func(context.Context) {}
	n.conflicts = guard.New(guard.Config{
		Own: conflict.Own{Driver: n.Config.DriverName}, Reporter: n.Reporter,
		Looker:  &look.Looker{Nodes: unknown{}, Registry: n.Config.KubeletRegistryDir, Driver: n.Config.DriverName},
		Changed: nothing, Gone: nothing, Hold: func(error) {},
	})
	n.conflicts.Look(ctx)
}

// unknown is an API server that cannot be asked.
type unknown struct{}

// Get implements look.NodeGetter.
func (unknown) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return nil, errors.New("there is no API server")
}

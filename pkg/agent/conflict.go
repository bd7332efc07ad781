package agent

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
func (a *Agent) buildConflicts() {
	c := a.config
	a.conflicts = guard.New(guard.Config{
		// Declared layouts are not applied beside a MIG manager: that is for package declaration.
		Own:      conflict.Own{Driver: c.DriverName, Partitions: c.MIGDevices == config.MIGOnDemand && !a.declares()},
		Policies: c.Conflicts,
		Looker: &look.Looker{
			Nodes: noting{a.client.CoreV1().Nodes(), &a.nodeReadable}, Node: c.NodeName, Registry: c.KubeletRegistryDir,
			Driver: c.DriverName, Alone: c.PodUID == "",
		},
		Reporter: a.reporter,
		Interval: c.RescanInterval,
		Hold:     a.gate.Hold,
		Gone:     a.succeed,
		Changed: func(ctx context.Context) {
			a.catalog.Rederive(ctx)
			if p := a.publisher.Load(); p != nil {
				p.Again()
			}
		},
	})
}

// noting notes that a Node was read.
type noting struct {
	look.NodeGetter
	readable *atomic.Bool
}

// Get implements look.NodeGetter.
func (n noting) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error) {
	node, err := n.NodeGetter.Get(ctx, name, options)
	if err == nil {
		n.readable.Store(true)
	}
	return node, err
}

// succeed takes over what another driver of the name has left.
func (a *Agent) succeed(ctx context.Context) {
	a.takeOver(ctx, a.catalog.View())
	if err := a.taintTaken(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "It is not known which devices a former driver's claims have")
	}
}

// lookForTwin looks once whether another driver of this name listens, for who has no API server, and
// knows that no plugin of this driver runs.
func (a *Agent) lookForTwin(ctx context.Context) {
	nothing := func(context.Context) {}
	a.conflicts = guard.New(guard.Config{
		Own: conflict.Own{Driver: a.config.DriverName}, Reporter: a.reporter,
		Looker:  &look.Looker{Nodes: unknown{}, Registry: a.config.KubeletRegistryDir, Driver: a.config.DriverName},
		Changed: nothing, Gone: nothing, Hold: func(error) {},
	})
	a.conflicts.Look(ctx)
}

// unknown is an API server that cannot be asked.
type unknown struct{}

// Get implements look.NodeGetter.
func (unknown) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return nil, errors.New("there is no API server")
}

package agent

import (
	"context"

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
			Nodes: a.client.CoreV1().Nodes(), Node: c.NodeName, Registry: c.KubeletRegistryDir,
			Driver: c.DriverName, Alone: c.PodUID == "",
		},
		Reporter: a.reporter,
		Interval: c.RescanInterval,
		Hold:     a.gate.Hold,
		Changed: func(ctx context.Context) {
			a.catalog.Rederive(ctx)
			if p := a.publisher.Load(); p != nil {
				p.Again()
			}
		},
	})
}

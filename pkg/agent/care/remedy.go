package care

import (
	"slices"

	"github.com/gpu-dra/driver/pkg/driverroot/smi"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/monitor"
	"github.com/gpu-dra/driver/pkg/health/remedy"
)

// newRemedy makes what resets GPUs; nil where that is off.
func (c *Care) newRemedy() *remedy.Keeper {
	if !c.Config.HealthReset {
		return nil
	}
	return &remedy.Keeper{Config: remedy.Config{
		Patients: func() []remedy.Patient { return patients(c.monitor.Patients()) },
		OnGPU:    c.Engine.OnGPU, Hardware: c.Library, Tool: smi.Tool{Root: c.Config.DriverRoot.Container},
		Notes: remedy.Notes{Dir: c.StateDir(ResetsDir), BootID: c.Engine.BootID}, Reporter: c.Reporter, Count: c.Metrics.Reset,
	}}
}

// patients are the GPUs with what matters for a reset.
func patients(all []monitor.Patient) []remedy.Patient {
	out := make([]remedy.Patient, 0, len(all))
	for _, p := range all {
		out = append(out, remedy.Patient{
			GPU: p.GPU, Severity: p.Verdict.Severity(), Action: p.Record.Action,
			Answers: !slices.ContainsFunc(p.Verdict.Faults, func(f health.Fault) bool {
				return f.On && (f.Kind == health.Lost || f.Kind == health.Unresponsive)
			}),
		})
	}
	return out
}

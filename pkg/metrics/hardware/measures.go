package hardware

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
)

const namespace = "gpu_dra"

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// measure is one number of a GPU that was read.
type measure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// label is the value of a second label, where there is one.
	label []string
	// of gives false where the board does not tell.
	of func(health.Vitals) (float64, bool)
}

// number makes a measure's function of a fact.
func number[T int | uint64](fact func(health.Vitals) inventory.Fact[T], scale float64) func(health.Vitals) (float64, bool) {
	return func(v health.Vitals) (float64, bool) {
		f := fact(v)
		return float64(f.Value) * scale, f.Err == nil
	}
}

const (
	milli   = 0.001
	percent = 0.01
)

// measures are the numbers of each GPU, without NVLink errors, which the collector adds up.
func measures() []measure {
	ecc := describe("gpu_ecc_errors_total", "ECC errors since the driver last reset the GPU, by type: corrected or uncorrected.", "device", "type")
	gauge := func(name, help string, of func(health.Vitals) (float64, bool)) measure {
		return measure{describe(name, help, "device"), prometheus.GaugeValue, nil, of}
	}
	return []measure{
		gauge("gpu_temperature_celsius", "Temperature of the GPU.",
			number(func(v health.Vitals) inventory.Fact[int] { return v.CelsiusDegrees }, 1)),
		gauge("gpu_power_watts", "Power that the GPU takes.",
			number(func(v health.Vitals) inventory.Fact[int] { return v.PowerMilliwatts }, milli)),
		gauge("gpu_utilization_ratio", "Share of the last sample period in which the GPU ran something, 0 to 1. Not known in MIG mode.",
			number(func(v health.Vitals) inventory.Fact[int] { return v.GPUUtilization }, percent)),
		gauge("gpu_memory_bus_utilization_ratio", "Share of the last sample period in which memory was read or written, 0 to 1.",
			number(func(v health.Vitals) inventory.Fact[int] { return v.MemoryBusUtilization }, percent)),
		gauge("gpu_memory_used_bytes", "Memory of the GPU in use, the driver's own part included.",
			number(func(v health.Vitals) inventory.Fact[uint64] { return v.MemoryUsed }, 1)),
		gauge("gpu_memory_size_bytes", "Memory that the GPU has.",
			number(func(v health.Vitals) inventory.Fact[uint64] { return v.MemoryTotal }, 1)),
		{ecc, prometheus.CounterValue, []string{"corrected"}, number(func(v health.Vitals) inventory.Fact[uint64] { return v.Corrected }, 1)},
		{ecc, prometheus.CounterValue, []string{"uncorrected"}, number(func(v health.Vitals) inventory.Fact[uint64] { return v.Uncorrected }, 1)},
	}
}

// linksUp is how many NVLinks of a GPU are up, as of the last look at the hardware.
func linksUp(p Patient) int {
	up := 0
	for _, l := range p.GPU.NVLink.Links {
		if l.Active {
			up++
		}
	}
	return up
}

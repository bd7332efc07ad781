package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/tenancy"
	"github.com/gpu-dra/driver/pkg/topology"
)

func metricsPage() (string, error) {
	m := metrics.New("v0.0.0")
	// Series that appear with their first value.
	m.Devices(map[string]int{"gpu": 1})
	m.CountClaims(func() (int, error) { return 0, nil })
	m.Published(time.Second, metrics.Success)
	m.Steps("mps")
	m.Step("mps", metrics.Do, time.Second, nil)
	m.PreparedKind("gpu", time.Second)
	example, err := exampleGPU()
	if err != nil {
		return "", err
	}
	m.Registry().MustRegister(example)
	families, err := m.Registry().Gather()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(head("Metrics",
		"Served at `/metrics` of `--http-address`; [Monitoring](../monitoring.md) says which answers what. Labels are bounded sets:\n"+
			"claims, pods and UUIDs are labels of `gpu_dra_device_info` and `gpu_dra_claim_info` alone, to join with. Series of devices\n"+
			"are served by the one instance that watches the node's GPUs, and end with the device. Every series with known labels\n"+
			"exists from the start. The Go runtime's and the process's own metrics are there too."))
	b.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "gpu_dra_") {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labels(f), f.GetHelp())
	}
	var reasons []string
	for _, r := range metrics.Reasons() {
		reasons = append(reasons, "`"+string(r)+"`")
	}
	fmt.Fprintf(&b, "\nValues of `reason`: %s.\n", strings.Join(reasons, ", "))
	return b.String(), nil
}

func labels(f *dto.MetricFamily) string {
	var names []string
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if name := "`" + l.GetName() + "`"; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// exampleGPU is a GPU with a partition, of which there is every metric.
func exampleGPU() (*hardware.Collector, error) {
	snapshot, err := migtest.Load("hgx-h100-8")
	if err != nil {
		return nil, err
	}
	at := snapshot.GPUs[0].PCI
	known, part := inventory.Known(1), device.FromPartitionedSnapshot(snapshot, topology.Assignment{}, nil).Devices[0]
	patient := hardware.Patient{
		ReadAt: time.Unix(1, 0), Links: 1, Record: health.Record{Faults: []health.Fault{{Kind: health.XID, Code: "79", Severity: health.Evict}}},
		GPU: snapshot.GPUs[0],
		Vitals: health.Vitals{
			Partitions:     []health.Partition{{UUID: "MIG-1"}},
			CelsiusDegrees: known, PowerMilliwatts: known, GPUUtilization: known, MemoryBusUtilization: known,
		},
	}
	c := hardware.New(hardware.Config{
		Leads: func() bool { return true }, Patients: func() []hardware.Patient { return []hardware.Patient{patient} },
		Devices: func() map[string]device.Device { return map[string]device.Device{part.Name(): part} },
		Judge:   func(pci.Address, *health.Place) health.Verdict { return health.Verdict{} },
		Domain:  func(pci.Address) string { return "" },
		Tenants: func() ([]tenancy.Device, error) {
			return []tenancy.Device{{Name: part.Name(), Type: string(part.Kind()), UUID: "MIG-1", Claims: []tenancy.Claim{{}}}}, nil
		},
	})
	c.Counting(deaf{}).Noticed(context.Background(), at, 79, health.Rule{})
	return c, nil
}

// deaf is told of errors.
type deaf struct{}

func (deaf) Judged(context.Context, pci.Address, health.Verdict, health.Verdict) {}
func (deaf) Noticed(context.Context, pci.Address, int, health.Rule)              {}

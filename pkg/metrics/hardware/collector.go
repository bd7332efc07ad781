package hardware

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// Patient is a GPU with all that is known of how it is; it has the fields of monitor.Patient.
type Patient struct {
	GPU     inventory.GPU
	Record  health.Record
	Verdict health.Verdict
	Vitals  health.Vitals
	// ReadAt is when the vitals were read; zero where that never succeeded.
	ReadAt time.Time
	// Links is the number of NVLinks at full health.
	Links int
}

// Reporter is told what became of GPUs, as a monitor.Monitor tells it.
type Reporter interface {
	Judged(ctx context.Context, at pci.Address, before, after health.Verdict)
	Noticed(ctx context.Context, at pci.Address, xid int, rule health.Rule)
}

// Config is where a Collector has its knowledge from. All functions answer at once, from memory or
// from a file.
type Config struct {
	// Leads tells that this instance watches the GPUs: another one has no series of them.
	Leads func() bool
	// Patients are the GPUs, with what was last read of each.
	Patients func() []Patient
	// Devices are all devices of the node, by name.
	Devices func() map[string]device.Device
	// Domain is the NVLink domain of a GPU; empty for none.
	Domain func(pci.Address) string
	Judge  taints.Judge
	// Tenants are the devices that claims have.
	Tenants func() ([]tenancy.Device, error)
}

// Collector implements prometheus.Collector.
type Collector struct {
	Config
	measures []measure
	device, severity, fault, claim, partUsed, partSize,
	readAt, links, linkErrors, xids *prometheus.Desc

	mu sync.Mutex
	// errors are the NVLink errors that were counted of each GPU, noticed the XIDs by number.
	errors  map[pci.Address]linkErrors
	noticed map[pci.Address]map[int]uint64
}

// linkErrors is a count that never falls. The driver's sum is of the links that are up: it falls with
// each link that goes down, which would read as a counter that began anew, and so as a burst.
type linkErrors struct{ last, sum uint64 }

var _ prometheus.Collector = (*Collector)(nil)

// New makes a Collector.
func New(config Config) *Collector {
	return &Collector{
		Config: config, measures: measures(),
		device: describe("device_info",
			"Always 1, for each GPU and for each partition that exists. gpu is the device name of the GPU that it is, or is a part of.",
			"device", "type", "uuid", "gpu", "profile", "product", "pci_bus_id", "nvlink_domain"),
		severity: describe("device_severity",
			"How ill a device is: 0 well, 1 a note, 2 avoided by new pods, 3 what runs there is lost, too.", "device"),
		fault: describe("gpu_fault", "Severity of each fault of a GPU, or of a partition of it, while it lasts.", "device", "kind", "code"),
		claim: describe("claim_info",
			"Always 1, for each pod with a claim that has the device, or a share of it; pod is empty while no pod of the claim is known.",
			"device", "uuid", "namespace", "claim", "pod"),
		partUsed:   describe("partition_memory_used_bytes", "Memory of a partition in use.", "device"),
		partSize:   describe("partition_memory_size_bytes", "Memory that a partition has.", "device"),
		readAt:     describe("gpu_last_reading_timestamp_seconds", "When the GPU's numbers here were read, as Unix time.", "device"),
		links:      describe("gpu_nvlink_links", "NVLinks of the GPU, by state: up, or down that were up at full health.", "device", "state"),
		linkErrors: describe("gpu_nvlink_errors_total", "Errors of the GPU's NVLinks: replays, recoveries and CRC errors of flits.", "device"),
		xids:       describe("gpu_xid_errors_total", "Errors (XIDs) that the GPU driver reported since this instance began to watch.", "device", "xid"),
		errors:     map[pci.Address]linkErrors{}, noticed: map[pci.Address]map[int]uint64{},
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.device, c.severity, c.fault, c.claim, c.partUsed, c.partSize, c.readAt, c.links, c.linkErrors, c.xids} {
		out <- d
	}
	for _, m := range c.measures {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	if !c.Leads() {
		return
	}
	patients, devices := c.Patients(), c.Devices()
	// Records that cannot be read have a metric of their own.
	tenants, _ := c.Tenants()
	c.mu.Lock()
	defer c.mu.Unlock()
	there := map[pci.Address]bool{}
	for _, p := range patients {
		there[p.GPU.PCI] = true
		c.collectGPU(out, p)
	}
	gone := func(at pci.Address) bool { return !there[at] }
	maps.DeleteFunc(c.errors, func(at pci.Address, _ linkErrors) bool { return gone(at) })
	maps.DeleteFunc(c.noticed, func(at pci.Address, _ map[int]uint64) bool { return gone(at) })
	c.collectPartitions(out, patients, devices, tenants)
	c.collectClaims(out, tenants)
}

// constant sends a number of a device. A name that NVML or a record gives may have bytes that are no
// text, and a label must not.
func constant(out chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	for i, text := range labels {
		labels[i] = strings.ToValidUTF8(text, "?")
	}
	metric, err := prometheus.NewConstMetric(desc, kind, value, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(desc, err)
	}
	out <- metric
}

func (c *Collector) collectGPU(out chan<- prometheus.Metric, p Patient) {
	at, name := p.GPU.PCI, device.GPUName(p.GPU.PCI)
	constant(out, c.device, prometheus.GaugeValue, 1, name, string(device.KindGPU), p.GPU.UUID, name, "", p.GPU.ProductName, at.String(), c.Domain(at))
	constant(out, c.severity, prometheus.GaugeValue, float64(p.Verdict.Severity()), name)
	for _, f := range worstOf(p.Record.Faults) {
		constant(out, c.fault, prometheus.GaugeValue, float64(f.Severity), name, string(f.Kind), f.Code)
	}
	if p.Links > 0 {
		up := min(linksUp(p), p.Links)
		constant(out, c.links, prometheus.GaugeValue, float64(up), name, "up")
		constant(out, c.links, prometheus.GaugeValue, float64(p.Links-up), name, "down")
	}
	for xid, n := range c.noticed[at] {
		constant(out, c.xids, prometheus.CounterValue, float64(n), name, strconv.Itoa(xid))
	}
	if p.ReadAt.IsZero() {
		return
	}
	constant(out, c.readAt, prometheus.GaugeValue, float64(p.ReadAt.UnixMilli())*milli, name)
	for _, m := range c.measures {
		if value, known := m.of(p.Vitals); known {
			constant(out, m.desc, m.kind, value, append([]string{name}, m.label...)...)
		}
	}
	if e := p.Vitals.LinkErrors; e.Err == nil {
		constant(out, c.linkErrors, prometheus.CounterValue, float64(c.count(at, e.Value)), name)
	}
}

// count adds what a sum has risen by.
func (c *Collector) count(at pci.Address, now uint64) uint64 {
	e, seen := c.errors[at]
	if !seen || now > e.last {
		e.sum += now - e.last
	}
	e.last = now
	c.errors[at] = e
	return e.sum
}

// worstOf gives the gravest fault of each kind and code: partitions of one GPU can have the same.
func worstOf(faults []health.Fault) []health.Fault {
	type key struct {
		kind health.Kind
		code string
	}
	seen := map[key]bool{}
	var out []health.Fault
	// They come gravest first.
	for _, f := range faults {
		if k := (key{f.Kind, f.Code}); !seen[k] {
			seen[k] = true
			out = append(out, f)
		}
	}
	return out
}

// collectPartitions tells of those that exist: a GPU could have dozens of others.
func (c *Collector) collectPartitions(out chan<- prometheus.Metric, patients []Patient, devices map[string]device.Device, tenants []tenancy.Device) {
	product, memory := map[pci.Address]string{}, map[string]health.Partition{}
	for _, p := range patients {
		product[p.GPU.PCI] = p.GPU.ProductName
		for _, part := range p.Vitals.Partitions {
			memory[part.UUID] = part
		}
	}
	uuids := map[string]string{}
	for name, d := range devices {
		if m, ok := d.(device.MIG); ok && m.UUID() != "" {
			uuids[name] = m.UUID()
		}
	}
	for _, t := range tenants {
		if t.Type == string(device.KindMIG) && t.UUID != "" {
			uuids[t.Name] = t.UUID
		}
	}
	for _, name := range slices.Sorted(maps.Keys(uuids)) {
		m, ok := devices[name].(device.MIG)
		if !ok {
			continue
		}
		at := m.Identity().PCI
		constant(out, c.device, prometheus.GaugeValue, 1, name, string(device.KindMIG), uuids[name], device.GPUName(at),
			m.Partition().Profile.Name, product[at], at.String(), "")
		constant(out, c.severity, prometheus.GaugeValue, float64(c.Judge.Of(m).Severity()), name)
		if read, ok := memory[uuids[name]]; ok {
			constant(out, c.partUsed, prometheus.GaugeValue, float64(read.MemoryUsed), name)
			constant(out, c.partSize, prometheus.GaugeValue, float64(read.MemoryTotal), name)
		}
	}
}

// collectClaims tells who has what: once, however many shares or requests a claim has it by.
func (c *Collector) collectClaims(out chan<- prometheus.Metric, tenants []tenancy.Device) {
	for _, t := range tenants {
		type holder struct{ namespace, claim, pod string }
		holders := map[holder]bool{}
		for _, claim := range t.Claims {
			for _, p := range claim.Pods {
				holders[holder{claim.Namespace, claim.Name, p.Name}] = true
			}
			if len(claim.Pods) == 0 {
				holders[holder{claim.Namespace, claim.Name, ""}] = true
			}
		}
		for h := range holders {
			constant(out, c.claim, prometheus.GaugeValue, 1, t.Name, t.UUID, h.namespace, h.claim, h.pod)
		}
	}
}

// Counting counts the errors that are noticed, on their way to a reporter.
func (c *Collector) Counting(next Reporter) Reporter { return counting{next, c} }

type counting struct {
	Reporter
	collector *Collector
}

// maxXIDs bounds the numbers that are told apart of one GPU; the driver's documentation has fewer.
const maxXIDs = 200

// Noticed counts, and passes on.
func (c counting) Noticed(ctx context.Context, at pci.Address, xid int, rule health.Rule) {
	c.Reporter.Noticed(ctx, at, xid, rule)
	c.collector.mu.Lock()
	defer c.collector.mu.Unlock()
	seen := c.collector.noticed[at]
	if seen == nil {
		seen = map[int]uint64{}
		c.collector.noticed[at] = seen
	}
	if _, known := seen[xid]; !known && len(seen) >= maxXIDs {
		klog.FromContext(ctx).V(2).Info("Too many kinds of errors to count each", "gpu", at, "xid", xid)
		return
	}
	seen[xid]++
}

package hardware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics/hardware"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/tenancy"
	"github.com/gpu-dra/driver/pkg/topology"
)

const (
	first  = "gpu-0000-1b-00-0"
	second = "gpu-0000-43-00-0"
	fixed  = "gpu-0000-43-00-0-mig-1g-10gb-0"
	made   = "gpu-0000-43-00-0-mig-2g-20gb-2"
)

// node is what a collector is told of: two GPUs, of which the second is partitioned.
type node struct {
	follows  bool
	patients []hardware.Patient
	devices  map[string]device.Device
	tenants  []tenancy.Device
	err      error
	noticed  []int
}

func (n *node) Judged(context.Context, pci.Address, health.Verdict, health.Verdict) {}

func (n *node) Noticed(_ context.Context, _ pci.Address, xid int, _ health.Rule) {
	n.noticed = append(n.noticed, xid)
}

// readings are those of a GPU that tells everything.
func readings() health.Vitals {
	return health.Vitals{
		Corrected: inventory.Known[uint64](3), Uncorrected: inventory.Known[uint64](1), LinkErrors: inventory.Known[uint64](100),
		CelsiusDegrees: inventory.Known(41), PowerMilliwatts: inventory.Known(123_500), MemoryUsed: inventory.Known[uint64](1 << 30),
		MemoryTotal: inventory.Known[uint64](80 << 30), GPUUtilization: inventory.Known(75), MemoryBusUtilization: inventory.Known(20),
	}
}

func newNode(t testing.TB) *node {
	t.Helper()
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:2]
	s.GPUs[1] = migtest.With(t, s.GPUs[1], false, "1g.10gb:0")
	for range 18 {
		s.GPUs[0].NVLink.Links = append(s.GPUs[0].NVLink.Links, inventory.Link{Active: true})
	}
	n := &node{devices: map[string]device.Device{}}
	for _, d := range device.FromPartitionedSnapshot(s, topology.Assignment{}, nil).Devices {
		n.devices[d.Name()] = d
	}
	for i, g := range s.GPUs {
		p := hardware.Patient{GPU: g, Vitals: readings(), ReadAt: time.Unix(1_800_000_000, 500_000_000), Links: 18 * (1 - i)}
		n.patients = append(n.patients, p)
	}
	// In MIG mode a GPU does not say how busy it is.
	n.patients[1].Vitals.GPUUtilization = inventory.Unknown[int](inventory.ErrNotSupported)
	return n
}

func (n *node) collector() *hardware.Collector {
	return hardware.New(hardware.Config{
		Leads:    func() bool { return !n.follows },
		Patients: func() []hardware.Patient { return n.patients },
		Devices:  func() map[string]device.Device { return n.devices },
		Domain: func(at pci.Address) string {
			if at == n.patients[0].GPU.PCI {
				return "nvl-1"
			}
			return ""
		},
		Judge: func(at pci.Address, place *health.Place) health.Verdict {
			for _, p := range n.patients {
				if p.GPU.PCI == at {
					return p.Record.Verdict(place, health.DefaultTiming())
				}
			}
			return health.Verdict{}
		},
		Tenants: func() ([]tenancy.Device, error) { return n.tenants, n.err },
	})
}

// series lists what is collected, sorted, without help texts.
func series(t testing.TB, c prometheus.Collector, names ...string) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "gpu_dra_")
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			out = append(out, fmt.Sprintf("%s{%s} %v", name, strings.Join(labels, ","), value))
		}
	}
	slices.Sort(out)
	return out
}

func expect(t *testing.T, what string, c prometheus.Collector, names []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, series(t, c, names...)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestEveryNumberOfAGPU(t *testing.T) {
	n := newNode(t)
	n.patients = n.patients[:1]
	n.devices = nil
	expect(t, "one GPU", n.collector(), nil,
		"device_info{device="+first+",gpu="+first+",nvlink_domain=nvl-1,pci_bus_id=0000:1b:00.0,product=NVIDIA H100 80GB HBM3,profile=,type=gpu,uuid="+n.patients[0].GPU.UUID+"} 1",
		"device_severity{device="+first+"} 0",
		"gpu_ecc_errors_total{device="+first+",type=corrected} 3",
		"gpu_ecc_errors_total{device="+first+",type=uncorrected} 1",
		"gpu_last_reading_timestamp_seconds{device="+first+"} 1.8000000005e+09",
		"gpu_memory_bus_utilization_ratio{device="+first+"} 0.2",
		"gpu_memory_size_bytes{device="+first+"} 8.589934592e+10",
		"gpu_memory_used_bytes{device="+first+"} 1.073741824e+09",
		"gpu_nvlink_errors_total{device="+first+"} 100",
		"gpu_nvlink_links{device="+first+",state=down} 0",
		"gpu_nvlink_links{device="+first+",state=up} 18",
		"gpu_power_watts{device="+first+"} 123.5",
		"gpu_temperature_celsius{device="+first+"} 41",
		"gpu_utilization_ratio{device="+first+"} 0.75",
	)
}

func TestWhatABoardDoesNotTellHasNoSeries(t *testing.T) {
	n := newNode(t)
	expect(t, "utilization", n.collector(), []string{"gpu_utilization_ratio"}, "gpu_utilization_ratio{device="+first+"} 0.75")
	// A GPU that was never read has no numbers, and one that cannot be read any more keeps its last.
	n.patients[0].ReadAt, n.patients[0].Vitals = time.Time{}, health.Vitals{}
	names := []string{"gpu_temperature_celsius", "gpu_last_reading_timestamp_seconds", "gpu_nvlink_errors_total"}
	expect(t, "never read", n.collector(), names,
		"gpu_last_reading_timestamp_seconds{device="+second+"} 1.8000000005e+09",
		"gpu_nvlink_errors_total{device="+second+"} 100",
		"gpu_temperature_celsius{device="+second+"} 41")
}

func TestDevicesThatExist(t *testing.T) {
	n := newNode(t)
	n.tenants = []tenancy.Device{
		{Name: made, Type: "mig", UUID: "MIG-made"},
		// It is not published any more.
		{Name: "gpu-0000-99-00-0-mig-1g-10gb-0", Type: "mig", UUID: "MIG-gone"},
	}
	c := n.collector()
	var got []string
	for _, s := range series(t, c, "device_info") {
		got = append(got, s[:strings.Index(s, ",nvlink_domain")])
	}
	want := []string{
		"device_info{device=" + first + ",gpu=" + first, "device_info{device=" + second + ",gpu=" + second,
		"device_info{device=" + fixed + ",gpu=" + second, "device_info{device=" + made + ",gpu=" + second,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Memory is of those that were read, by UUID: what is read of an instance that ended is nobody's.
	n.patients[1].Vitals.Partitions = []health.Partition{{UUID: "MIG-made", MemoryUsed: 5, MemoryTotal: 20}, {UUID: "MIG-ended", MemoryTotal: 10}}
	expect(t, "memory", c, []string{"partition_memory_used_bytes", "partition_memory_size_bytes"},
		"partition_memory_size_bytes{device="+made+"} 20", "partition_memory_used_bytes{device="+made+"} 5")
	// A fault of one partition is none of the other's, nor of the GPU as a whole.
	m := n.devices[fixed].(device.MIG)
	place := health.PlaceOf(*m.Instance())
	n.patients[1].Record.Faults = []health.Fault{
		{Kind: health.XID, Code: "94", Severity: health.Avoid, Place: &place},
		{Kind: health.XID, Code: "94", Severity: health.Note},
		{Kind: health.Memory, Code: "remap-pending", Severity: health.Note},
	}
	n.patients[1].Verdict = n.patients[1].Record.Verdict(nil, health.DefaultTiming())
	expect(t, "faults", c, []string{"gpu_fault", "device_severity"},
		"device_severity{device="+first+"} 0", "device_severity{device="+fixed+"} 2",
		"device_severity{device="+made+"} 1", "device_severity{device="+second+"} 1",
		"gpu_fault{code=94,device="+second+",kind=xid} 2", "gpu_fault{code=remap-pending,device="+second+",kind=memory} 1")
}

func TestWhoHasWhat(t *testing.T) {
	n := newNode(t)
	claim := func(namespace, name string, pods ...string) tenancy.Claim {
		c := tenancy.Claim{Namespace: namespace, Name: name, UID: types.UID(name)}
		for _, p := range pods {
			c.Pods = append(c.Pods, tenancy.Pod{Name: p})
		}
		return c
	}
	n.tenants = []tenancy.Device{{Name: first, Type: "gpu", UUID: "GPU-1", Claims: []tenancy.Claim{
		// Two shares of one device, by two requests of one claim, which two pods use.
		claim("team", "shares", "one", "two"), claim("team", "shares", "one", "two"), claim("other", "new"),
	}}}
	c := n.collector()
	expect(t, "claims", c, []string{"claim_info"},
		"claim_info{claim=new,device="+first+",namespace=other,pod=,uuid=GPU-1} 1",
		"claim_info{claim=shares,device="+first+",namespace=team,pod=one,uuid=GPU-1} 1",
		"claim_info{claim=shares,device="+first+",namespace=team,pod=two,uuid=GPU-1} 1")
	n.tenants, n.err = nil, errors.New("no such disk")
	if len(series(t, c, "claim_info")) != 0 || len(series(t, c, "gpu_temperature_celsius")) != 2 {
		t.Error("records that cannot be read do not leave the hardware's numbers alone")
	}
}

func TestSeriesOfDevicesThatAreGoneVanish(t *testing.T) {
	n := newNode(t)
	c := n.collector()
	reporter := c.Counting(n)
	at := n.patients[1].GPU.PCI
	reporter.Noticed(t.Context(), at, 79, health.Rule{})
	reporter.Noticed(t.Context(), at, 79, health.Rule{})
	reporter.Noticed(t.Context(), n.patients[0].GPU.PCI, 13, health.Rule{})
	names := []string{"gpu_xid_errors_total", "gpu_nvlink_errors_total"}
	expect(t, "both", c, names,
		"gpu_nvlink_errors_total{device="+first+"} 100", "gpu_nvlink_errors_total{device="+second+"} 100",
		"gpu_xid_errors_total{device="+first+",xid=13} 1", "gpu_xid_errors_total{device="+second+",xid=79} 2")
	if diff := cmp.Diff([]int{79, 79, 13}, n.noticed); diff != "" {
		t.Errorf("what is counted is not passed on:\n%s", diff)
	}
	left := n.patients[1]
	n.patients = n.patients[:1]
	for _, s := range series(t, c) {
		if strings.Contains(s, "device="+second+"}") || strings.Contains(s, "device="+second+",") {
			t.Errorf("the GPU is gone, and there is %s", s)
		}
	}
	left.Vitals.LinkErrors = inventory.Known[uint64](5)
	n.patients = append(n.patients, left)
	expect(t, "a GPU that comes back begins anew", c, names,
		"gpu_nvlink_errors_total{device="+first+"} 100", "gpu_nvlink_errors_total{device="+second+"} 5",
		"gpu_xid_errors_total{device="+first+",xid=13} 1")
	n.follows = true
	expect(t, "another instance watches", c, nil)
}

// Whatever the driver's sums do, the counter of link errors never falls, and rises by what they rise.
func TestLinkErrorsNeverFall(t *testing.T) {
	n := newNode(t)
	n.patients = n.patients[:1]
	n.devices = nil
	rapid.Check(t, func(rt *rapid.T) {
		c := n.collector()
		var last, want float64
		for i, sum := range rapid.SliceOfN(rapid.Uint64Range(0, 1000), 1, 8).Draw(rt, "sums") {
			n.patients[0].Vitals.LinkErrors = inventory.Known(sum)
			if i == 0 || float64(sum) > last {
				want += float64(sum) - last
			}
			last = float64(sum)
			if got := series(t, c, "gpu_nvlink_errors_total"); got[0] != fmt.Sprintf("gpu_nvlink_errors_total{device=%s} %v", first, want) {
				rt.Fatalf("%s after the sum %d, want %v", got[0], sum, want)
			}
		}
	})
}

// The number of series is bounded by the devices that exist and by who has them, however long the
// node runs and whatever the driver reports.
func TestCardinality(t *testing.T) {
	n := newNode(t)
	c := n.collector()
	reporter := c.Counting(n)
	for xid := range 1000 {
		reporter.Noticed(t.Context(), n.patients[0].GPU.PCI, xid, health.Rule{})
	}
	if got := len(series(t, c, "gpu_xid_errors_total")); got != 200 {
		t.Errorf("%d kinds of errors of one GPU have series, at most 200 may", got)
	}
	n = newNode(t)
	c = n.collector()
	perGPU, before := 15, len(series(t, c))
	if limit := perGPU*len(n.patients) + 2; before > limit {
		t.Errorf("%d series of %d GPUs and a partition, want at most %d", before, len(n.patients), limit)
	}
	for round := range 50 {
		n.tenants = []tenancy.Device{{Name: first, Claims: []tenancy.Claim{{Namespace: "n", Name: fmt.Sprint("claim-", round)}}}}
		if got := len(series(t, c)); got != before+1 {
			t.Fatalf("%d series in round %d, want %d", got, round, before+1)
		}
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	n := newNode(t)
	n.patients[0].Record.Faults = []health.Fault{{Kind: health.XID, Code: "79", Severity: health.Evict}}
	n.tenants = []tenancy.Device{{Name: first, Claims: []tenancy.Claim{{Name: "c"}}}}
	c := n.collector()
	c.Counting(n).Noticed(t.Context(), n.patients[0].GPU.PCI, 79, health.Rule{})
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func BenchmarkScrape(b *testing.B) {
	n := newNode(b)
	c := n.collector()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// A board whose name is no text must not end the process that is asked for metrics.
func TestANameThatIsNoText(t *testing.T) {
	n := newNode(t)
	n.patients = n.patients[:1]
	n.patients[0].GPU.ProductName = "NVIDIA \xff\xfe"
	n.tenants = []tenancy.Device{{Name: first, Type: "gpu", UUID: "GPU-\xf0", Claims: []tenancy.Claim{{Namespace: "team", Name: "one"}}}}
	got := series(t, n.collector(), "device_info", "claim_info")
	for _, part := range []string{"product=NVIDIA ?,", "uuid=GPU-?}"} {
		if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, part) }) {
			t.Errorf("no %q in %q", part, got)
		}
	}
}

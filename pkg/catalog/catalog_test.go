package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/topology"
)

const driver = "gpu.nvidia.com"

// node is everything around a catalog; what it is told is kept as text.
type node struct {
	mu       sync.Mutex
	scan     func(context.Context) (inventory.Snapshot, error)
	memory   topology.Memory
	loadErr  error
	saveErr  error
	told     []string
	scans    int
	lastView *catalog.View
}

func (n *node) Scan(ctx context.Context) (inventory.Snapshot, error) {
	n.mu.Lock()
	n.scans++
	scan := n.scan
	n.mu.Unlock()
	return scan(ctx)
}

func (n *node) looks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.scans
}

func (n *node) tell(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, fmt.Sprintf(format, args...))
}

func (n *node) Load() (topology.Memory, error) { return n.memory, n.loadErr }

func (n *node) Save(m topology.Memory) (bool, error) {
	if n.saveErr != nil {
		return false, n.saveErr
	}
	n.memory = m
	n.tell("saved")
	return true, nil
}

func (n *node) Hardware(_ context.Context, s inventory.Snapshot) { n.tell("hardware %d", len(s.GPUs)) }

func (n *node) Hung(_ context.Context, err error) { n.tell("hung: %v", err) }

func (n *node) Withheld(_ context.Context, w []device.Withheld) {
	if len(w) > 0 {
		n.tell("withheld %d", len(w))
	}
}

func (n *node) Omitted(_ context.Context, o []device.Omission) { n.tell("omitted %d", len(o)) }

func (n *node) meter() meter { return meter{n} }

// meter is apart, since both it and the scanner have a Scan.
type meter struct{ *node }

func (m meter) Scan(_ time.Duration, up bool, unusable int) { m.tell("scan %t %d", up, unusable) }

func (m meter) Devices(byType map[string]int) { m.tell("devices %v", byType) }

// found makes the hardware answer with a snapshot from now on.
func (n *node) found(s inventory.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.scan = func(context.Context) (inventory.Snapshot, error) { return s, nil }
}

func (n *node) log() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	told := n.told
	n.told = nil
	return told
}

func derive(s inventory.Snapshot, a topology.Assignment) catalog.Derived {
	devices := device.FromSnapshot(s, a)
	return catalog.Derived{
		Devices:   devices,
		Resources: resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": {Generation: int64(len(devices))}}},
		Omissions: make([]device.Omission, 1),
	}
}

func newCatalog(n *node) *catalog.Catalog {
	return catalog.New(catalog.Config{
		DriverName: driver, Pool: "node", Scanner: n, Memory: n, Derive: derive, Reporter: n, Meter: n.meter(),
		Changed: func(v *catalog.View) { n.lastView = v },
	})
}

func refresh(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestBeforeTheFirstLook(t *testing.T) {
	c := newCatalog(&node{})
	v := c.View()
	if v.Snapshot.Driver.Present || v.Snapshot.Driver.Missing == "" || len(v.Devices) != 0 || v.Looked || c.Trouble() != nil {
		t.Errorf("%+v, %v", v, c.Trouble())
	}
}

// A look gives one view of devices, domains and slices, and tells all that must know.
func TestLook(t *testing.T) {
	n := &node{}
	n.found(inventorytest.TwoIslands())
	c := newCatalog(n)
	refresh(t, c)
	v := c.View()
	if v != n.lastView || !v.Looked || len(v.Devices) != 8 || len(v.Assignment.Domains) != 2 || v.Resources.Pools["node"].Generation != 8 {
		t.Errorf("%+v", v)
	}
	for name, d := range v.Devices {
		if d.Name() != name {
			t.Errorf("%s is %s", name, d.Name())
		}
	}
	want := []string{"scan true 0", "hardware 8", "saved", "devices map[gpu:8]", "omitted 1"}
	if diff := cmp.Diff(want, n.log()); diff != "" {
		t.Error(diff)
	}
}

// A GPU that is lost goes alone; the others keep their domain, which comes from memory.
func TestLostGPUKeepsTheDomains(t *testing.T) {
	n := &node{}
	whole := inventorytest.TwoIslands()
	n.found(whole)
	c := newCatalog(n)
	refresh(t, c)
	before := c.View().Assignment
	n.found(inventorytest.Lose(whole, whole.GPUs[1].PCI))
	refresh(t, c)
	for _, g := range c.View().Snapshot.GPUs {
		if now, was := c.View().Assignment.GPUs[g.PCI].Domain, before.GPUs[g.PCI].Domain; now != was {
			t.Errorf("%s moved from %q to %q", g.PCI, was, now)
		}
	}
	// Another process starts with what this one stored.
	other := newCatalog(n)
	refresh(t, other)
	if diff := cmp.Diff(c.View().Assignment.GPUs, other.View().Assignment.GPUs); diff != "" {
		t.Error(diff)
	}
}

// Without a driver the pool is empty, and nothing is learnt of the topology.
func TestDriverAbsent(t *testing.T) {
	n := &node{}
	n.found(inventorytest.HGXH100())
	c := newCatalog(n)
	refresh(t, c)
	memory := n.memory
	n.found(inventory.Snapshot{Driver: inventory.Driver{Missing: "no library"}})
	n.log()
	refresh(t, c)
	if len(c.View().Devices) != 0 {
		t.Errorf("devices %v", c.View().Devices)
	}
	if diff := cmp.Diff([]string{"scan false 0", "hardware 0", "devices map[]", "omitted 1"}, n.log()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(memory, n.memory); diff != "" {
		t.Error(diff)
	}
}

// A library that hangs, and a look that fails, leave the view as it is and are told.
func TestViewStays(t *testing.T) {
	broken := errors.New("broken")
	for name, row := range map[string]struct {
		snapshot inventory.Snapshot
		err      error
		want     error
		told     []string
	}{
		"hung":   {inventory.Snapshot{Driver: inventory.Driver{Err: inventory.ErrHung}}, nil, inventory.ErrHung, []string{"scan false 0", "hung: " + inventory.ErrHung.Error()}},
		"failed": {inventory.Snapshot{}, broken, broken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{}
			n.found(inventorytest.T4())
			c := newCatalog(n)
			refresh(t, c)
			view := c.View()
			n.log()
			n.scan = func(context.Context) (inventory.Snapshot, error) { return row.snapshot, row.err }
			if err := c.Refresh(t.Context()); !errors.Is(err, row.want) || !errors.Is(c.Trouble(), row.want) {
				t.Errorf("%v, %v", err, c.Trouble())
			}
			if c.View() != view {
				t.Error("the view has changed")
			}
			if diff := cmp.Diff(row.told, n.log()); diff != "" {
				t.Error(diff)
			}
			n.found(inventorytest.T4())
			refresh(t, c)
			if c.Trouble() != nil {
				t.Error(c.Trouble())
			}
		})
	}
}

// failing is a look at a driver that is there and fails to answer.
func failing() inventory.Snapshot {
	return inventory.Snapshot{
		Driver:   inventory.Driver{Missing: "broken", Err: fmt.Errorf("nvmlCall: %w", inventory.ErrTransient)},
		Unusable: []inventory.Unusable{{PCI: inventorytest.T4().GPUs[0].PCI, Reason: "the GPU driver does not answer"}},
	}
}

// A driver that fails to answer is asked again soon, whoever had the look that failed, and only
// the third failure in a row empties the view. Nothing is said of the GPUs before that.
func TestTransientFailure(t *testing.T) {
	for name, failures := range map[string]int{"once": 1, "twice": 2, "thrice": 3, "on and on": 5} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{}
				n.found(inventorytest.T4())
				c := newCatalog(n)
				refresh(t, c)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go c.Run(ctx, time.Minute)
				n.log()
				n.scan = func(context.Context) (inventory.Snapshot, error) {
					if n.looks() > failures+1 {
						return inventorytest.T4(), nil
					}
					return failing(), nil
				}
				err := c.Refresh(t.Context())
				for i := range min(failures, 2) {
					if !errors.Is(err, inventory.ErrTransient) || len(c.View().Devices) == 0 {
						t.Errorf("failure %d: %v, %d devices", i+1, err, len(c.View().Devices))
					}
					if diff := cmp.Diff([]string{"scan false 0"}, n.log()); diff != "" {
						t.Errorf("failure %d: %s", i+1, diff)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					err = c.Trouble()
				}
				if err != nil || n.looks() != min(failures, 2)+2 || (len(c.View().Devices) == 0) != (failures > 2) {
					t.Errorf("%v, %d scans, %d devices", err, n.looks(), len(c.View().Devices))
				}
				// What is empty is looked at as rarely as anything else.
				time.Sleep(time.Minute)
				synctest.Wait()
				if want := min(failures, 2) + 3; n.looks() != want {
					t.Errorf("%d scans after a minute, want %d", n.looks(), want)
				}
			})
		})
	}
}

// Claims that ask again and again, all within a moment, do not wear the patience out; a look that
// succeeds restores it.
func TestTransientFailuresAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		c := newCatalog(n)
		for range 3 {
			n.found(inventorytest.T4())
			refresh(t, c)
			n.found(failing())
			for range 10 {
				time.Sleep(150 * time.Millisecond)
				if err := c.Refresh(t.Context()); !errors.Is(err, inventory.ErrTransient) || len(c.View().Devices) == 0 {
					t.Fatalf("%v, %d devices", err, len(c.View().Devices))
				}
			}
		}
	})
}

// A node that starts with such a driver has no view until that is certain.
func TestTransientFailureAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		n.found(failing())
		c := newCatalog(n)
		for look := range 3 {
			if err := c.Refresh(t.Context()); (err == nil) != (look == 2) || c.View().Looked != (look == 2) {
				t.Errorf("look %d: %v, %t", look, err, c.View().Looked)
			}
			time.Sleep(time.Second)
		}
	})
}

// The GPUs that are there at the start are one line of the log; what is wrong has its own, and so
// has what comes later.
func TestLogOfChanges(t *testing.T) {
	line := func(c inventory.ChangeKind, detail string) string {
		return fmt.Sprintf("Hardware changed.*%s.*%s", c, detail)
	}
	t4 := inventorytest.T4()
	one := inventorytest.Clone(t4)
	one.GPUs = one.GPUs[:1]
	for name, c := range map[string]struct {
		looks []inventory.Snapshot
		want  []string
	}{
		"several": {[]inventory.Snapshot{t4}, []string{fmt.Sprintf("Hardware found: %d GPUs, driver 580.95.05", len(t4.GPUs))}},
		"one":     {[]inventory.Snapshot{one}, []string{line(inventory.Appeared, t4.GPUs[0].ProductName)}},
		"one of them lost": {
			[]inventory.Snapshot{inventorytest.Lose(t4, t4.GPUs[1].PCI)},
			[]string{fmt.Sprintf("Hardware found: %d GPUs, driver 580.95.05", len(t4.GPUs)-1), line(inventory.Failed, "GPU is lost")},
		},
		"without a driver first": {
			[]inventory.Snapshot{{Driver: inventory.Driver{Missing: "no library"}}, one, t4},
			slices.Repeat([]string{line(inventory.Appeared, t4.GPUs[0].ProductName)}, len(t4.GPUs)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			logger := funcr.New(func(_, line string) { got = append(got, line) }, funcr.Options{})
			n := &node{}
			cat := newCatalog(n)
			for _, s := range c.looks {
				n.found(s)
				if err := cat.Refresh(klog.NewContext(t.Context(), logger)); err != nil {
					t.Fatal(err)
				}
			}
			same := func(want, got string) bool { return regexp.MustCompile(want).MatchString(got) }
			if !slices.EqualFunc(c.want, got, same) {
				t.Errorf("the log is %q, want %q", got, c.want)
			}
		})
	}
}

// A memory that cannot be read or written costs nothing but the memory.
func TestMemoryFaults(t *testing.T) {
	n := &node{loadErr: errors.New("torn"), saveErr: errors.New("full")}
	n.found(inventorytest.TwoIslands())
	c := newCatalog(n)
	refresh(t, c)
	if len(c.View().Assignment.Domains) != 2 {
		t.Errorf("%+v", c.View().Assignment)
	}
}

// Whoever waits for a look must not get the end of another's patience for an answer.
func TestALookCutShortIsNobodyElsesAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		c := newCatalog(n)
		n.scan = func(ctx context.Context) (inventory.Snapshot, error) {
			select {
			case <-ctx.Done():
				return inventory.Snapshot{}, ctx.Err()
			case <-time.After(2 * time.Second):
				return inventorytest.T4(), nil
			}
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		impatient := make(chan error)
		go func() { impatient <- c.Refresh(short) }()
		synctest.Wait()
		patient := make(chan error)
		go func() { patient <- c.Refresh(t.Context()) }()
		if err := <-impatient; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the impatient one: %v", err)
		}
		if err := c.Trouble(); err != nil {
			t.Errorf("trouble of the node: %v", err)
		}
		if err := <-patient; err != nil || len(c.View().Devices) == 0 {
			t.Errorf("the patient one: %v, %d devices", err, len(c.View().Devices))
		}
	})
}

// Those who ask while a look is under way share the next: what they ask for may have come after
// that look had passed it.
func TestRefreshIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		n.scan = func(context.Context) (inventory.Snapshot, error) {
			time.Sleep(time.Second)
			return inventorytest.T4(), nil
		}
		c := newCatalog(n)
		var wg sync.WaitGroup
		wg.Go(func() { refresh(t, c) })
		time.Sleep(time.Millisecond)
		for range 10 {
			wg.Go(func() { refresh(t, c) })
		}
		wg.Wait()
		if n.scans != 2 {
			t.Errorf("%d scans", n.scans)
		}
	})
}

func TestRefreshGivesUpWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		n.scan = func(context.Context) (inventory.Snapshot, error) {
			time.Sleep(time.Hour)
			return inventorytest.T4(), nil
		}
		c := newCatalog(n)
		var wg sync.WaitGroup
		wg.Go(func() { refresh(t, c) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Refresh(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wg.Wait()
	})
}

// Run looks at every interval, also after a look that failed, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		n.scan = func(context.Context) (inventory.Snapshot, error) { return inventory.Snapshot{}, errors.New("no") }
		c := newCatalog(n)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		c.Run(ctx, time.Minute)
		if n.scans != 10 {
			t.Errorf("%d scans", n.scans)
		}
	})
}

// Plans are made with the devices of the view, and sharing is refused.
func TestPlan(t *testing.T) {
	n := &node{}
	s := inventorytest.T4()
	n.found(s)
	c := newCatalog(n)
	claim := &resourceapi.ResourceClaim{}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	results := &claim.Status.Allocation.Devices
	results.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: driver, Pool: "node", Device: device.GPUName(s.GPUs[1].PCI)},
	}
	var planning *claims.Error
	if _, err := c.Plan(claim); !errors.As(err, &planning) || planning.Reason != claims.ReasonUnknownDevice {
		t.Errorf("before the first look: %v", err)
	}
	refresh(t, c)
	plan, err := c.Plan(claim)
	if err != nil || len(plan.Devices) != 1 || plan.Devices[0].Device.Identity().GPUUUID != s.GPUs[1].UUID {
		t.Errorf("%+v, %v", plan, err)
	}
	results.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver,
			Parameters: runtime.RawExtension{Raw: []byte(
				`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing"}}`)},
		}},
	}}
	if _, err := c.Plan(claim); err == nil || !strings.Contains(err.Error(), "sharing") {
		t.Errorf("sharing: %v", err)
	}
}

// What is derived from what was seen can be made anew, also while the hardware hangs.
func TestRederive(t *testing.T) {
	n := &node{}
	generation := int64(1)
	c := catalog.New(catalog.Config{
		DriverName: driver, Pool: "node", Scanner: n, Memory: n, Reporter: n, Meter: n.meter(),
		Derive: func(inventory.Snapshot, topology.Assignment) catalog.Derived {
			return catalog.Derived{Resources: resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": {Generation: generation}}}}
		},
		Changed: func(v *catalog.View) { n.lastView = v },
	})
	c.Rederive(t.Context())
	if c.View().Looked || n.lastView != nil {
		t.Fatalf("derived from nothing: %+v", c.View())
	}
	n.found(inventorytest.TwoIslands())
	refresh(t, c)
	before := c.View()

	entered, leave := make(chan struct{}), make(chan struct{})
	n.mu.Lock()
	n.scan = func(context.Context) (inventory.Snapshot, error) {
		close(entered)
		<-leave
		return inventory.Snapshot{}, inventory.ErrHung
	}
	n.mu.Unlock()
	scanned := make(chan error, 1)
	go func() { scanned <- c.Refresh(t.Context()) }()
	<-entered
	generation = 2
	c.Rederive(t.Context())
	close(leave)
	if err := <-scanned; !errors.Is(err, inventory.ErrHung) {
		t.Error(err)
	}
	v := c.View()
	if v != n.lastView || v.Resources.Pools["node"].Generation != 2 || !v.Snapshot.Same(before.Snapshot) || before.Resources.Pools["node"].Generation != 1 {
		t.Errorf("the view is %+v", v)
	}
}

// Nothing is derived anew while the hardware looks the same, unless somebody says so.
func TestSameHardwareIsNotDerivedAnew(t *testing.T) {
	n := &node{}
	derived, changed := 0, 0
	c := catalog.New(catalog.Config{
		DriverName: driver, Pool: "node", Scanner: n, Memory: n, Reporter: n, Meter: n.meter(),
		Derive: func(inventory.Snapshot, topology.Assignment) catalog.Derived {
			derived++
			return catalog.Derived{Resources: resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": {Generation: int64(derived)}}}}
		},
		Changed: func(*catalog.View) { changed++ },
	})
	n.found(inventorytest.TwoIslands())
	refresh(t, c)
	refresh(t, c)
	if derived != 1 || changed != 2 || c.View().Resources.Pools["node"].Generation != 1 {
		t.Errorf("derived %d times, changed %d times", derived, changed)
	}
	c.Rederive(t.Context())
	refresh(t, c)
	if derived != 2 || c.View().Resources.Pools["node"].Generation != 2 {
		t.Errorf("derived %d times", derived)
	}
	n.found(inventorytest.Lose(inventorytest.TwoIslands(), inventorytest.TwoIslands().GPUs[0].PCI))
	refresh(t, c)
	if derived != 3 {
		t.Errorf("derived %d times", derived)
	}
}

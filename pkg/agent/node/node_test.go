package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/catalog"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/topology"
)

// ofSnapshot is a node that has seen the snapshot, whose own parts are at rest.
func ofSnapshot(t *testing.T, s inventory.Snapshot) *Node {
	t.Helper()
	n := parts(Deps{Config: config.Default(), Metrics: metrics.New("v1")})
	n.Config.NodeName = "node-1"
	quiet := quiet{s}
	n.Catalog = catalog.New(catalog.Config{
		DriverName: n.Config.DriverName, Pool: n.Config.NodeName, Scanner: quiet, Memory: quiet,
		Derive: derive(n.Offers(), n.conditions), Reporter: quiet, Meter: n.Metrics, Changed: func(*catalog.View) {},
	})
	if err := n.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// quiet is hardware that does not change, and those who are told.
type quiet struct{ snapshot inventory.Snapshot }

func (q quiet) Scan(context.Context) (inventory.Snapshot, error) { return q.snapshot, nil }
func (quiet) Load() (topology.Memory, error)                     { return topology.Memory{}, nil }
func (quiet) Save(topology.Memory) (bool, error)                 { return false, nil }
func (quiet) Hardware(context.Context, inventory.Snapshot)       {}
func (quiet) Hung(context.Context, error)                        {}
func (quiet) Withheld(context.Context, []device.Withheld)        {}
func (quiet) Omitted(context.Context, []device.Omission)         {}

func TestDriverNote(t *testing.T) {
	sick := inventorytest.T4()
	sick.Unusable = []inventory.Unusable{{PCI: sick.GPUs[0].PCI, Reason: "lost"}, {PCI: sick.GPUs[1].PCI, Reason: "vfio"}}
	for name, row := range map[string]struct {
		snapshot inventory.Snapshot
		words    []string
	}{
		"well":   {inventorytest.T4(), nil},
		"sick":   {sick, []string{sick.GPUs[0].PCI.String() + ": lost", sick.GPUs[1].PCI.String() + ": vfio"}},
		"absent": {inventory.Snapshot{Driver: inventory.Driver{Missing: "no library there"}}, []string{"no library there"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := ofSnapshot(t, row.snapshot).DriverNote(t.Context())
			if (err == nil) != (row.words == nil) {
				t.Fatal(err)
			}
			for _, w := range row.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

// A library that was replaced ends the process, so that it starts anew.
func TestReplacedLibraryEndsServing(t *testing.T) {
	var fatal error
	n := parts(Deps{Publish: func(resourceslice.DriverResources) {}, Fatal: func(err error) { fatal = err }})
	n.changed(&catalog.View{Resources: resourceslice.DriverResources{}})
	if fatal != nil {
		t.Fatal("a common change ended it")
	}
	n.changed(&catalog.View{Snapshot: inventory.Snapshot{Driver: inventory.Driver{Err: inventory.ErrRestart}}})
	if !errors.Is(fatal, ErrRestart) {
		t.Error(fatal)
	}
}

// A process whose GPU driver hangs from the start must not take away what was published before.
func TestNothingIsPublishedBeforeTheFirstLook(t *testing.T) {
	published := false
	n := parts(Deps{Publish: func(resourceslice.DriverResources) { published = true }})
	empty := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": {}}}
	n.changed(&catalog.View{Resources: empty})
	if published {
		t.Error("a view from before the first look is published")
	}
	n.changed(&catalog.View{Looked: true, Resources: empty})
	if !published {
		t.Error("the pool of a node without GPUs is not published")
	}
}

// The topology stays in memory while a GPU is missing from it.
func TestTopologyIsWhole(t *testing.T) {
	s := inventorytest.TwoIslands()
	n := ofSnapshot(t, s)
	if !topologyIsWhole(n.Catalog.View()) {
		t.Error("all GPUs are there")
	}
	_, memory := topology.Resolve(s, topology.Memory{})
	lost := inventorytest.Lose(s, s.GPUs[0].PCI)
	n.Catalog = catalog.New(catalog.Config{
		Scanner: quiet{lost}, Memory: remembering{memory}, Derive: derive(n.Offers(), n.conditions),
		Reporter: quiet{}, Meter: n.Metrics, Changed: func(*catalog.View) {},
	})
	if topologyIsWhole(n.Catalog.View()) {
		t.Error("the hardware was not looked at")
	}
	if err := n.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if topologyIsWhole(n.Catalog.View()) {
		t.Error("a GPU is missing")
	}
}

type remembering struct{ memory topology.Memory }

func (r remembering) Load() (topology.Memory, error)   { return r.memory, nil }
func (remembering) Save(topology.Memory) (bool, error) { return false, nil }

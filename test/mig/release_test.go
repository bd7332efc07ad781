package mig_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/process"
)

// complete fails unless the slices are a whole pool: there are all of one generation. While a
// pool is written anew there are old ones beside new ones, or too few.
func complete(pool []resourceapi.ResourceSlice) error {
	if len(pool) == 0 {
		return errors.New("no slice")
	}
	for _, s := range pool {
		if s.Spec.Pool.Generation != pool[0].Spec.Pool.Generation || s.Spec.Pool.ResourceSliceCount != int64(len(pool)) {
			return fmt.Errorf("slice %s of a pool of %d is of generation %d, of %d slices", s.Name, len(pool), s.Spec.Pool.Generation, s.Spec.Pool.ResourceSliceCount)
		}
	}
	return nil
}

// laid fails unless the pool is whole and in one layout: every slice of one generation, counters
// beside all that consumes them or in slices of their own.
func laid(pool []resourceapi.ResourceSlice, together bool) error {
	if err := complete(pool); err != nil {
		return err
	}
	sets := 0
	for _, s := range pool {
		sets += len(s.Spec.SharedCounters)
		if both := len(s.Spec.SharedCounters) > 0 && len(s.Spec.Devices) > 0; both != together {
			return fmt.Errorf("slice %s has %d counter sets and %d devices", s.Name, len(s.Spec.SharedCounters), len(s.Spec.Devices))
		}
	}
	if sets != 8 {
		return fmt.Errorf("%d counter sets", sets)
	}
	return nil
}

// Kubernetes 1.34 wants counters beside devices, later releases apart. After an update of the
// control plane, in either direction and with claims prepared, nothing of the old layout is left.
func TestReleases(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.API.SetVersion("v1.34.4")
	p := b.start()
	held := b.gets("held", b.Device(0)+"-mig-1g-10gb-6")
	b.prepare(held)
	for _, step := range []struct {
		version  string
		together bool
	}{{"v1.34.4", true}, {"v1.35.1", false}, {"v1.34.4", true}} {
		b.API.SetVersion(step.version)
		p.Terminate()
		p = b.start()
		b.Eventually("the layout of "+step.version, func() error { return laid(b.published(), step.together) })
		b.prepare(held)
	}
	b.unprepare(held)
	b.untouched()
}

// Schedulers before Kubernetes 1.37 do not see that a partition that is shared excludes others: to
// them it is not offered, with an Event; after an update of the cluster it is.
func TestSharesNeedRelease(t *testing.T) {
	b := newBed(t, "a30-4", gpusim.WithFile(func(f *nodefile.File) { f.MIG = &nodefile.MIG{Enabled: true} }))
	shared := func() int {
		n := 0
		for _, s := range b.published() {
			for _, d := range s.Spec.Devices {
				if d.AllowMultipleAllocations != nil {
					n++
				}
			}
		}
		return n
	}
	declared := process.Flag("shared-devices", `[{"enforcement":"none","replicas":2,"devices":{"indices":[0],"profiles":["1g.6gb"]}}]`)
	b.API.SetVersion("v1.36.1")
	p := b.start(declared)
	b.Eventually("the other devices", func() error {
		if names := b.names(0); !slices.Contains(names, "2g-12gb-0") {
			return fmt.Errorf("published are %v", names)
		}
		return nil
	})
	b.told("ValueOmitted", "need Kubernetes 1.37 (this is 1.36.1)")
	b.looked(p, 4)
	if n := shared(); n != 0 {
		t.Errorf("%d shared partitions are offered to 1.36", n)
	}
	p.Terminate()
	b.API.SetVersion("v1.37.0")
	b.start(declared)
	b.Eventually("the four small partitions in shares", func() error {
		if n := shared(); n != 4 {
			return fmt.Errorf("%d are offered", n)
		}
		return nil
	})
}

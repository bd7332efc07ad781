package mig_test

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// laid fails unless the pool is whole and in one layout: every slice of one generation, counters
// beside all that consumes them or in slices of their own.
func laid(pool []resourceapi.ResourceSlice, together bool) error {
	sets := 0
	for _, s := range pool {
		if s.Spec.Pool.Generation != pool[0].Spec.Pool.Generation || s.Spec.Pool.ResourceSliceCount != int64(len(pool)) {
			return fmt.Errorf("slice %s of a pool of %d is of generation %d, of %d slices", s.Name, len(pool), s.Spec.Pool.Generation, s.Spec.Pool.ResourceSliceCount)
		}
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

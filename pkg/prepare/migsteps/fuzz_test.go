package migsteps

import (
	"testing"

	"github.com/gpu-dra/driver/pkg/reconcile"
)

// FuzzThing: what names a partition among the things that the reconciler looks at says which one, or is
// refused.
func FuzzThing(f *testing.F) {
	for _, id := range []string{"mig/GPU-1/19/4:1", "mig/GPU-1/19/4", "mig//x/1:1", "mig/GPU-1/19/-1:1", "///"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		p, err := parseThing(reconcile.Thing{ID: id})
		if err != nil {
			return
		}
		if p.Start < 0 || p.Size <= 0 {
			t.Errorf("%q is the place %d of %d units", id, p.Start, p.Size)
		}
	})
}

// FuzzParams: the parameters of both steps are understood, or refused.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"pci":"0000:1b:00.0","gpuUUID":"GPU-1","profile":19,"profileName":"1g.10gb","start":4,"size":1}`))
	f.Add([]byte(`{"pci":"1b"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decode[instanceParams](KindInstance, raw)
		mode, modeErr := decode[gpuParams](KindMode, raw)
		if err == nil && modeErr == nil && p.gpu() != mode.gpu() {
			t.Errorf("GPU %v of the one, %v of the other", p.gpu(), mode.gpu())
		}
	})
}

package migsteps_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
)

// What is in use after its claim is told, stays told while nothing is known about it, and is over
// when it is gone.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "hgx-h100-8")
		steps := r.steps(t, "1g-10gb-6")
		must(t, r.do(t.Context(), steps))
		var told []map[string]string
		w := migsteps.Watched{Instance: r.instance(), Stuck: &migsteps.Stuck{
			Tell: func(_ context.Context, current map[string]string) { told = append(told, current) },
		}}
		undo := func() error { return w.Undo(t.Context(), steps[1].Params, nil) }
		r.busy["DestroyComputeInstance"] = 1 << 10
		inUse := new(migsteps.InUseError)
		if err := undo(); !errors.As(err, &inUse) || len(told) != 1 || len(told[0]) != 1 {
			t.Fatalf("%v, told %v", err, told)
		}
		for place, note := range told[0] {
			if !strings.HasSuffix(place, " 6:1") || !strings.Contains(note, "in use") {
				t.Errorf("told %q: %q", place, note)
			}
		}
		r.fail["MIG"] = []error{inventory.ErrTransient}
		if err := undo(); err == nil || len(told) != 1 {
			t.Errorf("%v, told %v", err, told)
		}
		r.busy["DestroyComputeInstance"] = 0
		must(t, undo())
		if len(told) != 2 || len(told[1]) != 0 {
			t.Errorf("told %v", told)
		}
		must(t, undo())
		if len(told) != 2 {
			t.Errorf("told again: %v", told)
		}
	})
}

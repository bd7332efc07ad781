package migsteps_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/topology"
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
		// tainted are the devices of both GPUs that nobody may get; of 50.
		snapshot := migtest.Snapshot(t, "hgx-h100-8")
		snapshot.GPUs = snapshot.GPUs[:2]
		assignment, _ := topology.Resolve(snapshot, topology.Memory{})
		all := device.FromPartitionedSnapshot(snapshot, assignment, nil).Devices
		tainted := func() (names []string) {
			for _, d := range all {
				for _, taint := range w.Stuck.Taint("gpu.example.com")(d) {
					names = append(names, fmt.Sprintf("%s %s=%s:%s", strings.TrimPrefix(d.Name(), all[0].Name()[:16]), taint.Key, taint.Value, taint.Effect))
				}
			}
			return names
		}
		if got := tainted(); len(got) > 0 {
			t.Errorf("tainted are %q", got)
		}
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
		const taint = " gpu.example.com/mig-instance-in-use=ended-claim:NoSchedule"
		want := []string{
			"-mig-1g-10gb-6" + taint, "-mig-1g-10gb-with-me-6" + taint, "-mig-1g-20gb-6" + taint, "-mig-3g-40gb-4" + taint, "-mig-7g-80gb-0" + taint, taint,
		}
		if diff := cmp.Diff(want, tainted()); diff != "" {
			t.Errorf("tainted (-want +got):\n%s", diff)
		}
		r.fail["MIG"] = []error{inventory.ErrTransient}
		if err := undo(); err == nil || len(told) != 1 {
			t.Errorf("%v, told %v", err, told)
		}
		r.busy["DestroyComputeInstance"] = 0
		must(t, undo())
		if len(told) != 2 || len(told[1]) != 0 || len(tainted()) > 0 {
			t.Errorf("told %v, tainted %q", told, tainted())
		}
		must(t, undo())
		if len(told) != 2 {
			t.Errorf("told again: %v", told)
		}
	})
}

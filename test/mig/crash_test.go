package mig_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// cut is a place where the process is killed.
type cut struct {
	name string
	// call is what the kubelet is waiting for then.
	unprepare bool
	// begin arms the cut; wait returns when the process was killed or the call has ended.
	begin func(b bed, p *process.Plugin)
	wait  func(b bed, p *process.Plugin)
}

// inCall kills while the driver works on a call, before its deed.
func inCall(function string, unprepare bool) cut {
	return cut{
		name: function, unprepare: unprepare,
		begin: func(b bed, _ *process.Plugin) {
			must(b.T, b.Node.FailCall(gpusim.CallFault{Function: function, GPU: 0, Hang: true}))
		},
		wait: func(b bed, p *process.Plugin) {
			b.Eventually(function, func() error {
				state, err := b.Node.State()
				if err != nil {
					return err
				}
				for _, f := range state.Faults {
					if f.Armed != 0 && f.Remaining != 0 {
						return fmt.Errorf("%d calls to go", f.Remaining)
					}
				}
				return nil
			})
			p.Kill()
			must(b.T, b.Node.ClearFaults())
		},
	}
}

func cuts() []cut {
	return []cut{
		inCall("nvmlDeviceSetMigMode", false),
		inCall("nvmlDeviceCreateGpuInstanceWithPlacement", false),
		inCall("nvmlGpuInstanceCreateComputeInstance", false),
		inCall("nvmlComputeInstanceDestroy", true),
		inCall("nvmlGpuInstanceDestroy", true),
		inCall("nvmlDeviceSetMigMode", true),
	}
}

// end goes on after the process was started again: the claim is prepared once more and then
// unprepared, or unprepared at once.
func (b bed) end(claim kubelet.Claim, again bool) {
	b.T.Helper()
	if again {
		b.prepare(claim)
		if diff := cmp.Diff([]string{"2g.20gb:4"}, b.partitions(0)); diff != "" {
			b.T.Errorf("prepared again, partitions (-want +got):\n%s", diff)
		}
	}
	b.unprepare(claim)
	b.untouched()
}

func (b bed) startQuietly() *process.Plugin {
	return b.Start(process.Flag("mig-devices", "on-demand"), process.Flag("rescan-interval", "1h"), process.Flag("holder-wait", "1ms"))
}

// A process that is killed while the driver makes or removes something leaves nothing for good.
func TestKilledInACallOfTheDriver(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.startQuietly()
	for _, c := range cuts() {
		for _, again := range []bool{false, true} {
			name := fmt.Sprintf("%s, unprepare %t, prepared again %t", c.name, c.unprepare, again)
			claim := b.gets("one", b.Device(0)+"-mig-2g-20gb-4")
			if c.unprepare {
				b.prepare(claim)
			}
			c.begin(b, p)
			ended := make(chan error, 1)
			go func() {
				if c.unprepare {
					ended <- b.Unprepare(claim)
					return
				}
				_, err := b.Prepare(claim)
				ended <- err
			}()
			c.wait(b, p)
			if err := <-ended; err == nil {
				t.Errorf("%s: the call succeeded", name)
			}
			p = b.startQuietly()
			b.end(claim, again)
			if t.Failed() {
				t.Fatalf("this was %s", name)
			}
		}
	}
}

// Nor does one that is killed before a change of its files: each third here, all of them by make matrix.
func TestKilledAtChangesOfFiles(t *testing.T) {
	const stride = 3
	for first, unprepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("unprepare %t", unprepare), func(t *testing.T) {
			b := newBed(t, "hgx-h100-8")
			p := b.startQuietly()
			point := 1 + first
			for ; ; point += stride {
				claim := b.gets("one", b.Device(0)+"-mig-2g-20gb-4")
				if unprepare {
					b.prepare(claim)
				}
				trace := p.Trace(tracer.Plan{At: point})
				var err error
				if unprepare {
					err = b.Unprepare(claim)
				} else {
					_, err = b.Prepare(claim)
				}
				changes, traceErr := trace.Stop()
				must(t, traceErr)
				p.Kill()
				p = b.startQuietly()
				b.end(claim, point%2 == 0)
				if t.Failed() {
					t.Fatalf("this was point %d of %v, error %v", point, changes, err)
				}
				if err == nil {
					break
				}
			}
			if point < 10 {
				t.Errorf("only %d points", point)
			}
			t.Logf("%d points", (point+stride-1)/stride)
		})
	}
}

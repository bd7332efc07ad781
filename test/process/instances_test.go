package process_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// instance starts another pod of the DaemonSet beside what runs.
func instance(b *process.Bed, settings ...process.Setting) *process.Plugin {
	return b.Start(append(settings, process.Instance(string(uuid.NewUUID())))...)
}

// Two instances work with each other's records, and one of them publishes. It hands over when it
// is told to stop and when it is killed, and no slice is written for that.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	first := instance(b)
	first.WaitReady()
	metric(t, b, first, "gpu_dra_publishing 1")
	ofFirst := b.Allocated("of-first", []int{0, 1})
	answer := prepare(t, b, ofFirst, 0, 1)
	b.API.ResetRequests()

	second := instance(b, process.Flag("holder-wait", "1ms"))
	second.WaitReady()
	metric(t, b, second, "gpu_dra_publishing 0")
	if n := len(b.Kubelet.Instances(process.Driver)); n != 2 {
		t.Fatalf("%d instances are registered", n)
	}
	// The kubelet calls the newest.
	if diff := cmp.Diff(answer, prepare(t, b, ofFirst, 0, 1)); diff != "" {
		t.Errorf("the second instance answers otherwise: %s", diff)
	}
	refused(t, b, b.Allocated("thief", []int{1}), "default/of-first")
	unprepare(t, b, ofFirst)
	ofSecond := b.Allocated("of-second", []int{2})
	prepare(t, b, ofSecond, 2)

	first.Terminate()
	metric(t, b, second, "gpu_dra_publishing 1")
	third := instance(b)
	second.Kill()
	metric(t, b, third, "gpu_dra_publishing 1")
	third.WaitReady()
	looked(t, b, 4)
	if writes := sliceWrites(b); len(writes) > 0 {
		t.Errorf("handing over wrote slices: %+v", writes)
	}
	prepare(t, b, ofSecond, 2)
	unprepare(t, b, ofSecond)
	clean(t, b)
}

// Pods come and go while the plugin is updated again and again: no call fails.
func TestRollingUpdateUnderLoad(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	old := instance(b)
	end := make(chan struct{})
	errs := make([]error, 4)
	cycles := make([]atomic.Int64, len(errs))
	var failed atomic.Bool
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for n := 0; errs[i] == nil; n++ {
				select {
				case <-end:
					return
				default:
				}
				claim := b.Allocated(fmt.Sprintf("c%d-%d", i, n), []int{i, i + 4})
				if errs[i] = cycle(b, claim, i, i+4); errs[i] != nil {
					failed.Store(true)
				}
				cycles[i].Add(1)
			}
		})
	}
	// However fast the machine is, there are updates until each caller has met some.
	load := func() bool {
		for i := range cycles {
			if cycles[i].Load() < 10 {
				return false
			}
		}
		return true
	}
	for n := 0; (n < 5 || !load()) && !failed.Load(); n++ {
		next := instance(b)
		next.WaitReady()
		old.Terminate()
		old = next
	}
	close(end)
	wg.Wait()
	must(t, errors.Join(errs...))
	for i := range cycles {
		t.Logf("caller %d: %d cycles", i, cycles[i].Load())
	}
	clean(t, b)
}

// cycle is the life of a claim.
func cycle(b *process.Bed, claim kubelet.Claim, gpus ...int) error {
	answer, err := b.Prepare(claim)
	if err == nil {
		err = b.CheckPrepared(claim, answer, gpus...)
	}
	if err == nil {
		err = b.Unprepare(claim)
	}
	if err != nil {
		return fmt.Errorf("claim %s: %w", claim.Name, err)
	}
	return nil
}

// A call in flight when SIGTERM comes is answered before the process ends.
func TestTerminationDrains(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	claim := b.Allocated("claim", []int{0})
	// The first prepare reads the driver's files, by way of the driver.
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlSystemGetDriverVersion", GPU: gpusim.AnyGPU, Delay: 2 * time.Second, Count: gpusim.Forever}))
	answer := async(func() error {
		answer, err := b.Prepare(claim)
		if err == nil {
			err = b.CheckPrepared(claim, answer, 0)
		}
		return err
	})
	metric(t, b, p, `gpu_dra_calls_in_flight{operation="prepare"} 1`)
	p.Terminate()
	must(t, <-answer)
	must(t, b.Node.ClearFaults())
	b.Start()
	unprepare(t, b, claim)
	clean(t, b)
}

// Where a call does not end, the process does at its deadline, and the claim can go on.
func TestTerminationHasADeadline(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("shutdown-deadline", "1s"))
	claim := b.Allocated("claim", []int{0})
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlSystemGetDriverVersion", GPU: gpusim.AnyGPU, Hang: true, Count: gpusim.Forever}))
	answer := async(func() error {
		_, err := b.Prepare(claim)
		return err
	})
	metric(t, b, p, `gpu_dra_calls_in_flight{operation="prepare"} 1`)
	begin := time.Now()
	p.Signal()
	if err := p.WaitExit(); errors.Is(err, process.ErrStillRunning) {
		t.Fatal(err)
	}
	t.Logf("it took %s", time.Since(begin))
	if err := <-answer; err == nil {
		t.Error("a call that hung was answered")
	}
	must(t, b.Node.ClearFaults())
	b.Start()
	prepare(t, b, claim, 0)
	unprepare(t, b, claim)
	clean(t, b)
}

// Without a pod's UID there is one instance, which takes over the sockets of the one before.
func TestWithoutPodUID(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Instance(""))
	claim := b.Allocated("claim", []int{0})
	prepare(t, b, claim, 0)
	p.Kill()
	b.Start(process.Instance(""))
	prepare(t, b, claim, 0)
	unprepare(t, b, claim)
	clean(t, b)
}

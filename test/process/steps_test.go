package process_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// disk is a fault of the file system.
type disk struct {
	name  string
	errno syscall.Errno
	fails []tracer.Kind
	once  bool
}

func disks() []disk {
	return []disk{
		{"full", syscall.ENOSPC, []tracer.Kind{tracer.Create, tracer.Write, tracer.Mkdir, tracer.Rename}, false},
		{"read-only", syscall.EROFS, []tracer.Kind{tracer.Create, tracer.Mkdir, tracer.Rename, tracer.Remove}, false},
		{"I/O error", syscall.EIO, nil, true},
	}
}

// attempt is a row of the matrix of steps that fail: a claim whose call something goes wrong in.
type attempt struct {
	*matrix
	claim kubelet.Claim
	err   error
	// what went wrong, for people.
	what string
}

// attempt makes the claim of a row.
func (m *matrix) attempt(what string) *attempt {
	m.rows++
	a := &attempt{matrix: m, claim: m.kind.claim(m.bed, fmt.Sprintf("c%d", m.rows)), what: what}
	if m.prepared {
		m.prepare(m, m.bed, a.claim)
	}
	return a
}

// end goes on when nothing is wrong any more: the claim can be prepared and unprepared, and then
// nothing of it is left.
func (a *attempt) end() {
	defer func() {
		if a.Failed() {
			a.Logf("this was row %d, %s: the call ended with %v", a.rows, a.what, a.err)
		}
	}()
	if a.err == nil && !a.prepared || a.rows%2 == 0 {
		a.prepare(a, a.bed, a.claim)
	}
	unprepare(a, a.bed, a.claim)
	// Who takes the devices next also removes what may be left in the index of holders.
	a.settle(a.kind.claim(a.bed, "next"))
}

// TestDiskFaults lets the file system fail from every change on, or at one alone. The call says
// why it failed; once the disk is well the claim can be prepared and unprepared, and nothing of
// it is left. In the whole matrix every point meets every fault, otherwise whole GPUs do, and claims
// that change the hardware one of the faults at each eighth point, in turn.
func TestDiskFaults(t *testing.T) {
	whole := os.Getenv(matrixVariable) != ""
	for i, k := range append([]kind{wholes(1, 2)}, kinds()...) {
		for name, call := range calls() {
			t.Run(k.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				m := newMatrix(t, k)
				m.call, m.prepared, m.every, m.point, m.stride = call, name == "unprepare", whole || i == 0, 1, 1
				if !m.every {
					m.point, m.stride = 1+3*i%8, 8
				}
				m.plugin = m.bed.Start(m.flags(process.Flag("holder-wait", "1ms"))...)
				failed := 0
				for last := false; !last && !m.Failed(); m.point += m.stride {
					m.points++
					for j, d := range disks() {
						if !m.every && j != m.points%len(disks()) {
							continue
						}
						a := m.attempt(fmt.Sprintf("disk %s from point %d", d.name, m.point))
						trace := m.plugin.Trace(tracer.Plan{At: m.point, Errno: d.errno, Fails: d.fails, Once: d.once})
						a.err = m.call(m.bed, a.claim)
						changes, err := trace.Stop()
						must(t, err)
						if a.err != nil {
							failed++
							says(t, a.err, d.errno.Error())
						}
						a.end()
						last = len(changes) < m.point
					}
				}
				if failed == 0 {
					t.Error("no call failed")
				}
				t.Logf("%d points, %d rows, %d failed calls", m.points, m.rows, failed)
			})
		}
	}
}

// functions are what a kind's steps call of the driver and its tools, in prepare and unprepare.
func (k kind) functions() []string {
	var list []string
	if k.slice != 0 {
		list = append(list, "nvidia-smi:compute-policy")
	}
	if len(k.partitions) > 0 {
		list = append(list, "nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance",
			"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
	}
	if k.mps {
		list = append(list, "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode", "nvidia-cuda-mps-control", "nvidia-cuda-mps-control:ready",
			"nvidia-cuda-mps-control:set_default_active_thread_percentage", "nvidia-cuda-mps-control:get_default_device_pinned_mem_limit",
			"nvidia-cuda-mps-control:quit")
	}
	return list
}

// mishap is how a call of the driver goes wrong.
type mishap struct {
	name string
	// fault is armed for the call of a function; its Function and After are filled in.
	fault gpusim.CallFault
	// givesUp: the kubelet's time is up while the call hangs. Otherwise it comes back late, or at once.
	givesUp bool
	// kills: the process is killed while the call hangs, and what it was running with it.
	kills bool
}

func mishaps() []mishap {
	return []mishap{
		{name: "fails", fault: gpusim.CallFault{GPU: gpusim.AnyGPU, Code: 999}},
		{name: "hangs until after the call", fault: gpusim.CallFault{GPU: gpusim.AnyGPU, Hang: true}, givesUp: true},
		{name: "hangs, and the process is killed", fault: gpusim.CallFault{GPU: gpusim.AnyGPU, Hang: true}, givesUp: true, kills: true},
		{name: "is slow", fault: gpusim.CallFault{GPU: gpusim.AnyGPU, Hang: true}},
	}
}

// TestStepsThatFail lets every call that the steps make of the driver and its tools fail, and the
// first of each function also hang for longer than the kubelet waits, or until the process is killed; in
// the whole matrix every call does, and is slow; kills in calls about partitions are test/mig's. The claim gets a clear error, and the hardware has nothing of it but what
// its record says; once all is well it can be prepared and unprepared.
func TestStepsThatFail(t *testing.T) {
	whole := os.Getenv(matrixVariable) != ""
	for _, k := range kinds() {
		for name := range calls() {
			t.Run(k.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				m := newMatrix(t, k)
				m.prepared = name == "unprepare"
				m.plugin = m.bed.Start(m.flags(process.Flag("holder-wait", "1ms"))...)
				failed := 0
				for function, made := range m.counted() {
					for n := range made {
						for _, wrong := range mishaps() {
							if t.Failed() || !whole && wrong.fault.Hang && (n > 0 || !wrong.givesUp || wrong.kills && len(k.partitions) > 0) {
								continue
							}
							wrong.fault.Function, wrong.fault.After = function, n
							a := m.attempt(fmt.Sprintf("call %d of %s %s", n+1, function, wrong.name))
							a.goWrong(wrong)
							if a.err != nil {
								failed++
								a.judge()
							}
							a.end()
						}
					}
				}
				if failed == 0 {
					t.Error("no call failed")
				}
				t.Logf("%d rows, %d failed calls", m.rows, failed)
			})
		}
	}
}

// counted makes the call with nothing wrong and gives how often each of the kind's functions was
// called in it.
func (m *matrix) counted() map[string]uint32 {
	const many = 1000
	a := m.attempt("nothing goes wrong")
	for _, function := range m.functions() {
		must(m, m.bed.Node.FailCall(gpusim.CallFault{Function: function, GPU: gpusim.AnyGPU, After: many}))
	}
	must(m, a.ask(m.Context()))
	armed, err := m.bed.Node.ArmedFaults()
	must(m, err)
	made := map[string]uint32{}
	for _, f := range armed {
		made[f.Function] = many - f.After
	}
	must(m, m.bed.Node.ClearFaults())
	a.end()
	m.Logf("calls: %v", made)
	return made
}

// goWrong makes the call with the mishap.
func (a *attempt) goWrong(wrong mishap) {
	must(a, a.bed.Node.FailCall(wrong.fault))
	ctx, giveUp := context.WithCancel(a.Context())
	defer giveUp()
	ended := async(func() error { return a.ask(ctx) })
	if wrong.fault.Hang {
		over, hit := false, false
		a.bed.Eventually("the mishap, or the end of the call", func() error {
			select {
			case a.err = <-ended:
				over = true
				return nil
			default:
			}
			if hit = a.happened(); !hit {
				return errors.New("neither")
			}
			return nil
		})
		if hit && wrong.kills {
			a.plugin.KillAll()
		}
		if wrong.givesUp {
			giveUp()
		}
		must(a, a.bed.Node.ClearFaults())
		if !over {
			a.err = <-ended
		}
		if hit && !wrong.givesUp && a.err != nil {
			a.Errorf("a slow call failed: %v", a.err)
		}
		if hit && wrong.kills {
			a.plugin = a.bed.Start(a.flags(process.Flag("holder-wait", "1ms"))...)
		}
		return
	}
	a.err = <-ended
	must(a, a.bed.Node.ClearFaults())
}

// ask makes the kubelet's call.
func (a *attempt) ask(ctx context.Context) error {
	if a.prepared {
		result, err := a.bed.Kubelet.Unprepare(ctx, process.Driver, a.claim)
		return errors.Join(err, result[a.claim.UID])
	}
	result, err := a.bed.Kubelet.Prepare(ctx, process.Driver, a.claim)
	return errors.Join(err, result[a.claim.UID].Err)
}

// happened tells whether the armed fault was met.
func (a *attempt) happened() bool {
	armed, err := a.bed.Node.ArmedFaults()
	must(a, err)
	return !slices.ContainsFunc(armed, func(f gpusim.CallFault) bool { return f.Count != 0 })
}

// judge looks at what a failed call left and said.
func (a *attempt) judge() {
	if errors.Is(a.err, context.Canceled) || strings.Contains(a.err.Error(), "Canceled") || strings.Contains(a.err.Error(), "Unavailable") {
		return // the kubelet heard nothing, and the call may still be rolled back, or was cut off
	}
	says(a, a.err, "for device ")
	if !slices.ContainsFunc(a.devices(a.bed), func(d string) bool { return strings.Contains(a.err.Error(), d) }) {
		a.Errorf("%q names no device of %v", a.err, a.devices(a.bed))
	}
	if a.bed.Record(a.claim.UID) {
		return
	}
	if err := idle(a.bed); err != nil {
		a.Errorf("there is no record, and %v", err)
	}
	if _, err := os.Stat(a.bed.SpecPath(a.claim)); !errors.Is(err, os.ErrNotExist) {
		a.Errorf("there is no record, and of the CDI spec: %v", err)
	}
}

// A supervisor of MPS control daemons that takes a call and never answers: the kubelet gives up, and
// when it answers again nothing is half done.
func TestSupervisorThatHangs(t *testing.T) {
	k := kinds()[slices.IndexFunc(kinds(), func(k kind) bool { return k.name == "MPS" })]
	for name := range calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMatrix(t, k)
			m.prepared = name == "unprepare"
			m.plugin = m.bed.Start(m.flags(process.Flag("holder-wait", "1ms"))...)
			for range 2 {
				a := m.attempt("the supervisor is stopped")
				supervisor := m.pod.Supervisor()
				must(t, syscall.Kill(supervisor, syscall.SIGSTOP))
				ctx, giveUp := context.WithCancel(t.Context())
				ended := async(func() error { return a.ask(ctx) })
				m.bed.Eventually("a call in the step", func() error { return a.inStep() })
				giveUp()
				a.err = <-ended
				must(t, syscall.Kill(supervisor, syscall.SIGCONT))
				if a.err == nil {
					t.Error("the call succeeded without an answer")
				}
				a.end()
			}
		})
	}
}

// inStep waits for what the step does to the hardware before, or has the supervisor do in the end.
func (a *attempt) inStep() error {
	sharing, err := a.bed.Node.Sharing(a.gpus[0])
	if err != nil {
		return err
	}
	if !a.prepared && sharing.ComputeMode != a.mode {
		return fmt.Errorf("the GPU is shared as %+v", sharing)
	}
	if _, err := os.Stat(a.bed.SpecPath(a.claim)); a.prepared && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("of the CDI spec: %w", err)
	}
	return nil
}

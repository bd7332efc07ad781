package sharing_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/process"
)

const exclusive = gpusim.ComputeExclusiveProcess

// The interval of a claim holds as long as the claim, on its GPU alone.
func TestTimeSlicing(t *testing.T) {
	b := newBed(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) {
		f.GPUs[3].Override = []byte(`{"unsupported": ["timeSlice"]}`)
	}))
	b.start()
	claim := b.Allocated("slices", []int{1}, timeSlicing("Long"))
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvidia-smi:compute-policy", GPU: 1, Code: 999}))
	b.refused(claim, "Unknown Error")
	b.untouched()
	answer := b.prepare(claim)
	b.wantSharing(0, gpusim.Sharing{})
	b.wantSharing(1, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
	first, second := b.tenant(answer), b.tenant(answer)
	for _, c := range []*tenant{first, second} {
		c.want("compute_mode=0", "mps=none")
	}
	plain := b.Allocated("plain", []int{0, 3})
	b.prepare(plain)
	b.unprepare(plain)
	none := b.Allocated("none", []int{3}, timeSlicing("Short"))
	b.refused(none, "Not Supported")
	first.end()
	second.end()
	b.unprepare(claim)
	b.untouched()
}

// What an MPS claim asks for is enforced inside the containers that have it, and gone after it.
func TestMPSIsEnforced(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	b.start()
	claim := b.Allocated("share", []int{1}, mps(25, "1Gi"))
	answer := b.prepare(claim)
	b.wantSharing(1, gpusim.Sharing{ComputeMode: exclusive})
	one := b.tenant(answer, "--allocate", "700")
	serverOne := server(t, one.want("uuid="+b.Node.UUIDs()[1], "compute_mode=3", "thread_percentage=25.0", "pinned_limit=1024"))
	one.want("total=700")
	one.ask("allocate 400", "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit of 1024 MiB")
	// The pods of a claim share the server; who is not of the claim gets nothing.
	two := b.tenant(b.prepare(claim), "--allocate", "1000")
	if serverTwo := server(t, two.want("thread_percentage=25.0")); serverOne == 0 || serverTwo != serverOne {
		t.Errorf("servers %d and %d, want one for both", serverOne, serverTwo)
	}
	two.want("total=1000")
	b.refused(b.Allocated("other", []int{1}, mps(50, "1Gi")), "share")
	one.end()
	two.ask("allocate 24", "total=1024")
	two.end()
	b.unprepare(claim)
	b.untouched()
	after := b.Allocated("after", []int{1})
	plain := b.tenant(b.prepare(after))
	plain.want("compute_mode=0", "mps=none", "pinned_limit=none", "thread_percentage=100.0")
	plain.end()
	b.unprepare(after)
	b.untouched()
}

// Whoever is killed, programs that compute go on, and what ended comes back with its limits.
func TestKilled(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	p := b.start()
	claim := b.Allocated("share", []int{0}, mps(40, "2Gi"))
	answer := b.prepare(claim)
	client := b.tenant(answer)
	client.want("thread_percentage=40.0")
	before := b.daemon(b.Device(0))
	for range 3 {
		p.Kill()
		p = b.start()
		b.prepare(claim)
	}
	must(t, syscall.Kill(b.pod.Supervisor(), syscall.SIGKILL))
	client.ask("allocate 100", "total=100")
	b.pod.Supervisor()
	another := b.Allocated("another", []int{1}, mps(10, "1Gi"))
	b.prepare(another)
	if after := b.daemon(b.Device(0)); after != before {
		t.Errorf("the control daemon was %d and is %d", before, after)
	}
	must(t, syscall.Kill(before, syscall.SIGKILL))
	// Without it nobody could manage the server: the supervisor ends that too, and its clients with it.
	client.want("CUDA_ERROR_MPS_RPC_FAILURE")
	if code := client.ended(); code != 1 {
		t.Errorf("without its server the program ended with %d", code)
	}
	b.Eventually("another control daemon", func() error {
		if pid := b.daemon(b.Device(0)); pid != before {
			return syscall.Kill(pid, 0)
		}
		return syscall.ESRCH
	})
	// A program that comes before the limits are set loses its server: it is tried until one stays.
	b.Eventually("a program with limits", func() error {
		next := b.tenant(answer)
		line := next.line()
		if !hasAll(line, []string{"thread_percentage=40.0", "pinned_limit=2048"}) {
			next.ended()
			return errors.New(line)
		}
		next.end()
		return nil
	})
	b.unprepare(claim, another)
	b.untouched()
}

// A daemon that never answers costs the claim an error that says so, and nothing else.
func TestNeverReady(t *testing.T) {
	b := newBed(t, "t4-4")
	b.startPod()
	b.start()
	claim := b.Allocated("share", []int{2}, mps(25, "1Gi"))
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control:ready", GPU: gpusim.AnyGPU, Hang: true, Count: gpusim.Forever}))
	b.refused(claim, b.Device(2), "MPS")
	b.event(b.Device(2), "MPS", "it is tried again")
	b.wantSharing(2, gpusim.Sharing{})
	must(t, b.Node.ClearFaults())
	client := b.tenant(b.prepare(claim))
	client.want("thread_percentage=25.0")
	client.end()
	b.unprepare(claim)
	b.untouched()
}

// Without the supervisor a claim waits a while for it, then gets an error that says where to look.
func TestNoSupervisor(t *testing.T) {
	b := newBed(t, "t4-4")
	b.start()
	claim := b.Allocated("share", []int{0}, mps(25, "1Gi"))
	b.refused(claim, "the supervisor of MPS control daemons does not answer")
	b.wantSharing(0, gpusim.Sharing{})
	b.startPod()
	b.prepare(claim)
	b.unprepare(claim)
	b.untouched()
}

// A reboot ends daemons and forgets modes: the claim that lives through it gets both again.
func TestReboot(t *testing.T) {
	b := newBed(t, "t4-4")
	pod := b.startPod()
	p := b.start()
	claim := b.Allocated("share", []int{1}, mps(30, "1Gi"))
	slices := b.Allocated("slices", []int{2}, timeSlicing("Medium"))
	b.prepare(claim)
	b.prepare(slices)
	p.Kill()
	pod.End()
	must(t, b.Node.Reboot(7))
	b.startPod()
	b.start()
	client := b.tenant(b.prepare(claim))
	client.want("uuid="+b.Node.UUIDs()[1], "compute_mode=3", "thread_percentage=30.0", "pinned_limit=1024")
	b.prepare(slices)
	b.wantSharing(2, gpusim.Sharing{TimeSlice: gpusim.TimeSliceMedium})
	client.end()
	b.unprepare(claim, slices)
	b.untouched()
}

// A partition is shared by MPS like a GPU, beside a partition that is not.
func TestPartition(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.startPod()
	b.start(process.Flag("mig-devices", "on-demand"))
	device := b.Device(0) + "-mig-2g-20gb-0"
	claim := b.partition("share", device, mpsOf("MigDeviceConfig", 50, "3Gi"))
	answer := b.prepare(claim)
	beside := b.partition("beside", b.Device(0)+"-mig-1g-10gb-6")
	besideAnswer := b.prepare(beside)
	one, two, other := b.tenant(answer), b.tenant(answer), b.tenant(besideAnswer)
	for _, c := range []*tenant{one, two} {
		c.want("uuid=MIG-", "compute_mode=3", "thread_percentage=50.0", "pinned_limit=3072")
	}
	other.want("uuid=MIG-", "compute_mode=0", "mps=none")
	one.ask("allocate 3073", "CUDA_ERROR_OUT_OF_MEMORY")
	for _, c := range []*tenant{one, two, other} {
		c.end()
	}
	b.unprepare(claim, beside)
	b.untouched()
}

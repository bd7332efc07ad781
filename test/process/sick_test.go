package process_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// conditions waits until a claim says exactly that of its devices, as "device status reason".
func conditions(t testing.TB, b *process.Bed, claim string, want ...string) {
	t.Helper()
	b.Eventually("conditions of claim "+claim, func() error {
		found, err := b.Client.ResourceV1().ResourceClaims("default").Get(t.Context(), claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, d := range found.Status.Devices {
			for _, c := range d.Conditions {
				got = append(got, fmt.Sprint(d.Device, " ", c.Type, "=", c.Status, " ", c.Reason))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

func claimWrites(b *process.Bed) []kubeapi.Request {
	return b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceclaims", Writes: true})
}

// A claim says how its devices are, from prepare to unprepare, over restarts, and what the API
// server refuses keeps nobody from a GPU.
func TestConditionOfClaims(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	run := func() *process.Plugin {
		t.Helper()
		p := b.Start(process.Flag("claim-status", "true"), held(), process.Flag("health-interval", "1s"))
		p.WaitReady()
		return p
	}
	p := run()
	pair, single := b.Allocated("pair", []int{1, 2}), b.Allocated("single", []int{3})
	prepare(t, b, pair, 1, 2)
	prepare(t, b, single, 3)
	conditions(t, b, "pair", b.Device(1)+" Ready=True Healthy", b.Device(2)+" Ready=True Healthy")
	conditions(t, b, "single", b.Device(3)+" Ready=True Healthy")
	must(t, b.Node.InjectXID(1, gpusim.XID{Code: 13}))
	conditions(t, b, "pair", b.Device(1)+" Ready=True XID13", b.Device(2)+" Ready=True Healthy")
	must(t, b.Node.SetRecoveryAction(2, 1))
	conditions(t, b, "pair", b.Device(1)+" Ready=True XID13", b.Device(2)+" Ready=False RecoveryActionReset")

	p.Terminate()
	b.API.ResetRequests()
	run()
	// What it writes shows that it has looked at the claims by now.
	must(t, b.Node.InjectXID(3, gpusim.XID{Code: 13}))
	conditions(t, b, "single", b.Device(3)+" Ready=True XID13")
	unprepare(t, b, single)
	conditions(t, b, "single")
	if got := claimWrites(b); len(got) != 2 {
		t.Errorf("a restart, a note and an unprepare are %d writes: %+v", len(got), got)
	}
	must(t, b.Node.SetRecoveryAction(2, 0))
	conditions(t, b, "pair", b.Device(1)+" Ready=True XID13", b.Device(2)+" Ready=True Healthy")

	b.API.Inject(kubeapi.Fault{Match: kubeapi.Match{User: process.APIUser, Resource: "resourceclaims", Subresource: "status", Writes: true}, Code: 403})
	prepare(t, b, single, 3)
	event(t, b, "ClaimStatusRefused", "Ready")
	unprepare(t, b, single, pair)
	clean(t, b)
}

// A GPU whose calls do not return costs nobody else anything: it is tainted, the others are
// prepared, and it is offered again when its calls return.
func TestGPUHangs(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(held(), process.Flag("health-interval", "1s"), process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	mine := b.Allocated("mine", []int{2})
	prepare(t, b, mine, 2)
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetMemoryInfo", GPU: 2, Hang: true, Count: gpusim.Forever}))
	b.Eventually("the taint of a GPU that hangs", func() error {
		if got := taintsNow(t, b); len(got) != 1 || !slices.Contains(got[b.Device(2)], "unresponsive=:NoSchedule") {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	inform(t, b, b.Device(2), kubelet.Unhealthy, "do not return")
	others := b.Allocated("others", []int{0, 1, 3})
	prepare(t, b, others, 0, 1, 3)
	must(t, b.Node.InjectXID(0, gpusim.XID{Code: 95}))
	b.Eventually("an error of another GPU", func() error {
		if got := taintsNow(t, b)[b.Device(0)]; !slices.Contains(got, "xid=95:NoSchedule") {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	unprepare(t, b, others, mine)
	must(t, b.Node.ClearFaults())
	// This board's driver cannot say that it needs no recovery: the other GPU stays as it is.
	tainted(t, b, map[int][]string{0: {"xid=95:NoSchedule"}})
	inform(t, b, b.Device(2), kubelet.Healthy)
	prepare(t, b, mine, 2)
	unprepare(t, b, mine)
	clean(t, b)
}

// Errors that only the kernel log has count like others, and what was logged before the plugin read
// the log is not told.
func TestKernelLog(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	run := func() *process.Plugin {
		t.Helper()
		p := b.Start(process.Flag("health-kernel-log", b.Node.KernelLog()), lasting())
		p.WaitReady()
		b.Eventually("the kernel log is read", func() error {
			if !strings.Contains(p.Log(), "Reading the kernel log") {
				return errors.New("not yet")
			}
			return nil
		})
		return p
	}
	p := run()
	inform(t, b, b.Device(2), kubelet.Healthy)
	must(t, b.Node.InjectXID(2, gpusim.XID{Code: 95}))
	must(t, b.Node.LogXID(1, gpusim.XID{Code: 79}))
	sick := map[int][]string{1: {"xid=79:NoSchedule"}, 2: {"xid=95:NoSchedule"}}
	tainted(t, b, sick)
	inform(t, b, b.Device(1), kubelet.Unhealthy, "XID 79")
	p.Terminate()
	must(t, b.Node.LogXID(0, gpusim.XID{Code: 79}))
	run()
	must(t, b.Node.LogXID(3, gpusim.XID{Code: 48}))
	sick[3] = []string{"xid=48:NoSchedule"}
	tainted(t, b, sick)
}

// A GPU whose driver asks for a reset gets one where that is allowed and nobody uses it: not while a
// claim has it, and then without anybody's doing.
func TestReset(t *testing.T) {
	t.Parallel()
	b := process.New(t, "l40s-8")
	p := b.Start(process.Flag("health-reset", "true"), held(), process.Flag("health-interval", "1s"))
	p.WaitReady()
	claim := b.Allocated("claim", []int{1})
	prepare(t, b, claim, 1)
	must(t, b.Node.SetRecoveryAction(1, 1))
	event(t, b, "GPUResetWithheld", "claim default/claim has it")
	tainted(t, b, map[int][]string{1: {"recovery-action=reset:NoSchedule"}})
	must(t, b.Node.SetRecoveryAction(4, 1))
	event(t, b, "GPUReset", b.Node.Spec().GPUs[4].PCI.String())
	tainted(t, b, map[int][]string{1: {"recovery-action=reset:NoSchedule"}})
	unprepare(t, b, claim)
	event(t, b, "GPUReset", b.Node.Spec().GPUs[1].PCI.String())
	tainted(t, b, nil)
	metric(t, b, p, `gpu_dra_gpu_resets_total{result="success"} 2`)
	prepare(t, b, claim, 1)
	unprepare(t, b, claim)
	clean(t, b)
}

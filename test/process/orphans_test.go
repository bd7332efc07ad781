package process_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// eager looks for orphans all the time and gives them no grace.
func eager() []process.Setting {
	return []process.Setting{process.Flag("orphan-grace", "0s"), process.Flag("reconcile-interval", "1s"), process.Flag("holder-wait", "1ms")}
}

func deleteClaim(t *testing.T, b *process.Bed, c kubelet.Claim) {
	t.Helper()
	must(t, b.Client.ResourceV1().ResourceClaims(c.Namespace).Delete(t.Context(), c.Name, metav1.DeleteOptions{}))
}

func undone(t *testing.T, b *process.Bed, c kubelet.Claim) {
	t.Helper()
	b.Eventually("undoing of "+c.Name, func() error {
		if left := settled(b); b.Record(c.UID) || len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// Pod and claim were deleted by force while the plugin was down, and the kubelet forgot them: the
// node is whole again with no human step.
func TestClaimGoneWhileDown(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	claim := b.Allocated("ghost", []int{1, 2})
	prepare(t, b, claim, 1, 2)
	p.Kill()
	deleteClaim(t, b, claim)
	begun := time.Now()
	p = b.Start(eager()...)
	undone(t, b, claim)
	t.Logf("healed %s after the start", time.Since(begun))
	event(t, b, "OrphanUndone", "default/ghost")
	metric(t, b, p, "gpu_dra_orphans_undone_total 1")
	next := b.Allocated("next", []int{2})
	prepare(t, b, next, 2)
	unprepare(t, b, next)
	clean(t, b)
}

// Another claim of the same name, and one that was released, are as good as none; one that the
// kubelet still has is kept.
func TestClaimReplacedOrReleased(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start(eager()...)
	kept := b.Allocated("kept", []int{3})
	prepare(t, b, kept, 3)
	replaced := b.Allocated("replaced", []int{0})
	prepare(t, b, replaced, 0)
	b.Allocated("replaced", []int{0}) // the same name, another UID
	released := b.Allocated("released", []int{1})
	prepare(t, b, released, 1)
	claims := b.Client.ResourceV1().ResourceClaims("default")
	object, err := claims.Get(t.Context(), "released", metav1.GetOptions{})
	must(t, err)
	object.Status.Allocation = nil
	must(t, b.API.Put(object))
	for _, c := range []kubelet.Claim{replaced, released} {
		b.Eventually("undoing of "+c.Name, func() error {
			if b.Record(c.UID) {
				return fmt.Errorf("there is a record")
			}
			return nil
		})
	}
	if !b.Record(kept.UID) {
		t.Error("a claim was undone that is there")
	}
	unprepare(t, b, kept)
	cleaned(t, b)
}

// A claim that is gone keeps its GPU as long as a program computes on it.
func TestClaimGoneAndInUse(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(eager()...)
	claim := b.Allocated("busy", []int{2})
	prepare(t, b, claim, 2)
	must(t, b.Node.SetClients(2, 1))
	deleteClaim(t, b, claim)
	event(t, b, "OrphanKept", "default/busy")
	metric(t, b, p, "gpu_dra_orphans_kept 1")
	refused(t, b, b.Allocated("next", []int{2}), "is still prepared for claim default/busy")
	if !b.Record(claim.UID) {
		t.Error("undone while in use")
	}
	must(t, b.Node.SetClients(2, 0))
	undone(t, b, claim)
	metric(t, b, p, "gpu_dra_orphans_kept 0")
}

// An API server in trouble says nothing about claims.
func TestTroubleIsNoAnswer(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	claim := b.Allocated("claim", []int{0})
	prepare(t, b, claim, 0)
	p.Kill()
	for _, code := range []int{403, 404, 410, 500} {
		get := kubeapi.Match{User: process.APIUser, Verbs: []string{"get"}, Resource: "resourceclaims"}
		b.API.ResetRequests()
		remove := b.API.Inject(kubeapi.Fault{Match: get, Code: code})
		p = b.Start(eager()...)
		b.Eventually("questions about the claim", func() error {
			if n := len(b.API.Requests(get)); n < 3 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		p.Kill()
		remove()
		if !b.Record(claim.UID) {
			t.Fatalf("undone after answers of %d", code)
		}
	}
	b.Start(eager()...)
	prepare(t, b, claim, 0)
	unprepare(t, b, claim)
	clean(t, b)
}

// The kernel module was reloaded and the minors are others: the specs of claims that run are
// renewed, so that their containers can start again.
func TestSpecsAreRenewed(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start(process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	claim := b.Allocated("claim", []int{1, 5})
	answer := prepare(t, b, claim, 1, 5)
	before := minors(b)
	must(t, b.Node.Reboot(3))
	// Not judged by the specs, which may be renewed by now.
	if after := minors(b); before[1] == after[1] && before[5] == after[5] {
		t.Fatalf("the minors are still %v", after)
	}
	b.Eventually("renewed specs", func() error { return b.CheckPrepared(claim, answer, 1, 5) })
	unprepare(t, b, claim)
	clean(t, b)
}

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// node is a planner and preparer whose behaviour hangs on the claim's name.
type node struct {
	mu        sync.Mutex
	refreshed int
	takes     time.Duration
	failed    []string
	noticed   []string
	outcomes  []string
}

func (n *node) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.HasPrefix(claim.Name, "late") && n.refreshed == 0 || strings.HasPrefix(claim.Name, "never") {
		return claims.Plan{}, &claims.Error{Reason: claims.ReasonUnknownDevice, Err: errors.New("no such device")}
	}
	plan := claims.Plan{Claim: claims.Ref{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}}
	if strings.HasPrefix(claim.Name, "vain") {
		plan.Notices = []string{"no effect"}
	}
	return plan, nil
}

func (n *node) Refresh(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refreshed++
	return nil
}

func (n *node) Prepare(_ context.Context, plan claims.Plan) ([]prepare.Prepared, error) {
	time.Sleep(n.takes)
	switch {
	case strings.HasPrefix(plan.Claim.Name, "bad"):
		return nil, errors.New("bad claim")
	case strings.HasPrefix(plan.Claim.Name, "panic"):
		var none []int
		_ = none[len(plan.Claim.Name)]
	}
	return []prepare.Prepared{{Request: "r", Pool: "node-0", Device: "gpu", CDIDeviceIDs: []string{"a/b=" + plan.Claim.Name}}}, nil
}

func (n *node) Unprepare(_ context.Context, claim claims.Ref) error {
	if strings.HasPrefix(claim.Name, "bad") {
		return errors.New("busy")
	}
	return nil
}

func (n *node) ClaimFailed(_ context.Context, op metrics.Operation, claim claims.Ref, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = append(n.failed, fmt.Sprintf("%s %s: %v", op, claim.Name, err))
}

func (n *node) ClaimNoticed(_ context.Context, claim claims.Ref, notices []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noticed = append(n.noticed, claim.Name+": "+strings.Join(notices, ", "))
}

func (n *node) Call(op metrics.Operation) func(metrics.Result, metrics.Reason) {
	return func(result metrics.Result, reason metrics.Reason) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.outcomes = append(n.outcomes, fmt.Sprint(op, " ", result, " ", reason))
	}
}

func (n *node) plugin() *Plugin {
	return &Plugin{Planner: n, Preparer: n, Reporter: n, Meter: n}
}

func claimNamed(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
}

func batch(names ...string) []*resourceapi.ResourceClaim {
	var list []*resourceapi.ResourceClaim
	for _, name := range names {
		list = append(list, claimNamed(name))
	}
	return list
}

func TestNoticesReachTheClaim(t *testing.T) {
	n := &node{}
	if _, err := n.plugin().PrepareResourceClaims(t.Context(), batch("vain", "good")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"vain: no effect"}, n.noticed); diff != "" {
		t.Errorf("noticed (-want +got):\n%s", diff)
	}
}

func TestOneBadClaimDoesNotHurtTheOthers(t *testing.T) {
	n := &node{}
	got, err := n.plugin().PrepareResourceClaims(t.Context(), batch("good", "bad", "panic", "never"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[types.UID]string{"uid-good": "", "uid-bad": "bad claim", "uid-panic": "internal error", "uid-never": "no such device"}
	for uid, text := range want {
		result, ok := got[uid]
		switch {
		case !ok:
			t.Errorf("%s has no result", uid)
		case text == "" && (result.Err != nil || len(result.Devices) != 1):
			t.Errorf("%s: %+v, want a device", uid, result)
		case text != "" && (result.Err == nil || !strings.Contains(result.Err.Error(), text) || result.Devices != nil):
			t.Errorf("%s: %+v, want the error %q and no device", uid, result, text)
		}
	}
	if len(n.failed) != 3 || len(n.outcomes) != 4 {
		t.Errorf("reported %v, counted %v", n.failed, n.outcomes)
	}
}

func TestAnUnknownDeviceIsLookedForOnce(t *testing.T) {
	n := &node{}
	got, _ := n.plugin().PrepareResourceClaims(t.Context(), batch("late"))
	if result := got["uid-late"]; result.Err != nil || len(result.Devices) != 1 {
		t.Errorf("a device that the rescan finds: %+v", result)
	}
	if n.refreshed != 1 {
		t.Errorf("%d rescans, want 1", n.refreshed)
	}
}

func TestClaimsOfABatchRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{takes: time.Second}
		begin := time.Now()
		got, _ := n.plugin().PrepareResourceClaims(t.Context(), batch("a", "b", "c", "d"))
		if took := time.Since(begin); took != time.Second || len(got) != 4 {
			t.Errorf("four claims took %v with %d results", took, len(got))
		}
	})
}

func TestAnswer(t *testing.T) {
	share := types.UID("share")
	n := &node{}
	p := n.plugin()
	prepared := []prepare.Prepared{{Request: "r/sub", Pool: "p", Device: "d", ShareID: &share, CDIDeviceIDs: []string{"x", "y"}}}
	want := []draplugin.Device{{Requests: []string{"r/sub"}, PoolName: "p", DeviceName: "d", ShareID: &share, CDIDeviceIDs: []string{"x", "y"}}}
	if diff := cmp.Diff(want, p.answer(prepared)); diff != "" {
		t.Errorf("without metadata (-want +got):\n%s", diff)
	}
	metadata := &draplugin.DeviceMetadata{}
	p.Metadata = func(prepare.Prepared) *draplugin.DeviceMetadata { return metadata }
	if got := p.answer(prepared); got[0].Metadata != metadata {
		t.Error("metadata is not passed on")
	}
}

func TestUnprepareAnswersForEveryClaim(t *testing.T) {
	n := &node{}
	var list []draplugin.NamespacedObject
	for _, name := range []string{"good", "bad"} {
		list = append(list, draplugin.NamespacedObject{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}, UID: types.UID("uid-" + name)})
	}
	got, err := n.plugin().UnprepareResourceClaims(t.Context(), list)
	if err != nil || len(got) != 2 || got["uid-good"] != nil || got["uid-bad"] == nil {
		t.Errorf("results %v, error %v", got, err)
	}
	if diff := cmp.Diff([]string{"unprepare bad: busy"}, n.failed); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

func TestBackgroundErrors(t *testing.T) {
	tests := map[string]struct {
		err     error
		refused string
		fatal   bool
	}{
		"recoverable":    {fmt.Errorf("publish: %w", draplugin.ErrRecoverable), "publish", false},
		"invalid":        {apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "s", nil), "invalid", false},
		"dropped fields": {&resourceslice.DroppedFieldsError{PoolName: "node-0", DesiredSlice: &resourceapi.ResourceSlice{}, ActualSlice: &resourceapi.ResourceSlice{}}, "dropped fields", false},
		"anything else":  {errors.New("the socket is gone"), "", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var refused, fatal error
			p := &Plugin{
				Refused: func(_ context.Context, err error) { refused = err },
				Fatal:   func(err error) { fatal = err },
			}
			p.HandleError(t.Context(), tc.err, "background")
			if tc.refused != "" && (refused == nil || !strings.Contains(refused.Error(), tc.refused)) {
				t.Errorf("refused with %v, want %q", refused, tc.refused)
			}
			if (fatal != nil) != tc.fatal {
				t.Errorf("fatal is %v, want %v", fatal, tc.fatal)
			}
		})
	}
}

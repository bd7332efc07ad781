package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
)

const (
	prepareCall   = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
	unprepareCall = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
)

func TestRegistrationIsNoticed(t *testing.T) {
	accepted := &registerapi.RegistrationStatus{PluginRegistered: true}
	library := errors.New("failed registration process")
	tests := map[string]struct {
		method  string
		req     any
		err     error
		want    []bool
		refusal string
	}{
		"accepted":          {notifyMethod, accepted, nil, []bool{true}, ""},
		"refused":           {notifyMethod, &registerapi.RegistrationStatus{Error: "no such service"}, library, []bool{false}, "no such service"},
		"refused in a word": {notifyMethod, &registerapi.RegistrationStatus{}, library, []bool{false}, "it gave no reason"},
		"answered in error": {notifyMethod, accepted, errors.New("x"), nil, "earlier"},
		"another message":   {notifyMethod, &registerapi.InfoRequest{}, nil, nil, "earlier"},
		"another call":      {"/pluginregistration.Registration/GetInfo", &registerapi.InfoRequest{}, nil, nil, "earlier"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []bool
			calls := &Calls{Registered: func(taken bool) { got = append(got, taken) }, refusal: "earlier"}
			_, err := calls.Intercept(t.Context(), tc.req, &grpc.UnaryServerInfo{FullMethod: tc.method},
				func(context.Context, any) (any, error) { return nil, tc.err })
			if !slices.Equal(got, tc.want) || !errors.Is(err, tc.err) {
				t.Errorf("noticed %v with error %v, want %v and %v", got, err, tc.want, tc.err)
			}
			if refusal := calls.Refusal(); refusal != tc.refusal {
				t.Errorf("the kubelet's reason is %q, want %q", refusal, tc.refusal)
			}
		})
	}
}

func TestCallsThatFailOutsideThePluginAreTold(t *testing.T) {
	refs := []claims.Ref{{Namespace: "ns", Name: "a", UID: "1"}, {Namespace: "ns", Name: "b", UID: "2"}}
	prepareBoth := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: "ns", Name: "a", Uid: "1"}, {Namespace: "ns", Name: "b", Uid: "2"},
	}}
	unprepareOne := &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "a", Uid: "1"}}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, "a", errors.New("no rule"))
	slow := fmt.Errorf("get resource claims: %w", context.DeadlineExceeded)
	tests := map[string]struct {
		method string
		req    any
		err    error
		want   []CallFailure
	}{
		"prepared": {prepareCall, prepareBoth, nil, nil},
		"the API server refuses": {prepareCall, prepareBoth, forbidden, []CallFailure{
			{Operation: metrics.Prepare, Claim: refs[0], Reason: metrics.ReasonAPI, Took: time.Second, Err: forbidden},
			{Operation: metrics.Prepare, Claim: refs[1], Reason: metrics.ReasonAPI, Took: time.Second, Err: forbidden},
		}},
		"the API server is slow": {prepareCall, prepareBoth, slow, []CallFailure{
			{Operation: metrics.Prepare, Claim: refs[0], Reason: metrics.ReasonAPI, Took: time.Second, Err: slow},
			{Operation: metrics.Prepare, Claim: refs[1], Reason: metrics.ReasonAPI, Took: time.Second, Err: slow},
		}},
		"unprepare": {unprepareCall, unprepareOne, slow, []CallFailure{
			{Operation: metrics.Unprepare, Claim: refs[0], Reason: metrics.ReasonTimeout, Took: time.Second, Err: slow},
		}},
		"not about claims": {"/pluginregistration.Registration/GetInfo", &registerapi.InfoRequest{}, slow, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []CallFailure
				calls := &Calls{Failed: func(_ context.Context, f CallFailure) { got = append(got, f) }}
				for _, c := range []*Calls{calls, {}} {
					_, err := c.Intercept(t.Context(), tc.req, &grpc.UnaryServerInfo{FullMethod: tc.method},
						func(context.Context, any) (any, error) { time.Sleep(time.Second); return nil, tc.err })
					if !errors.Is(err, tc.err) {
						t.Errorf("the kubelet gets %v, want %v", err, tc.err)
					}
				}
				if diff := cmp.Diff(tc.want, got, cmpopts.EquateErrors()); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestACallThatWaitsInVainForItsTurnIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []CallFailure
		calls := &Calls{Failed: func(_ context.Context, f CallFailure) { got = append(got, f) }}
		req := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "1"}}}
		call := func(ctx context.Context) error {
			_, err := calls.Intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: prepareCall},
				func(context.Context, any) (any, error) { time.Sleep(time.Minute); return nil, nil })
			return err
		}
		go func() { _ = call(t.Context()) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := call(short); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the kubelet gets %v", err)
		}
		want := []CallFailure{{
			Operation: metrics.Prepare, Claim: claims.Ref{UID: "1"}, Reason: metrics.ReasonLock, Took: time.Second,
			Err: context.DeadlineExceeded,
		}}
		if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
	})
}

func TestDrainWaitsForClaimCallsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &Calls{}
		if err := calls.Drain(t.Context()); err != nil {
			t.Errorf("drain without calls: %v", err)
		}
		call := func(method string, takes time.Duration) {
			_, _ = calls.Intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) { time.Sleep(takes); return nil, nil })
		}
		go call(prepareCall, 2*time.Second)
		go call(prepareCall, 3*time.Second)
		go call("/pluginregistration.Registration/GetInfo", time.Minute)
		synctest.Wait()
		begin := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := calls.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a drain with too little time: %v", err)
		}
		if err := calls.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 3*time.Second+settle {
			t.Errorf("drained after %v, want the 3s of the longer claim call and the time for its answer", took)
		}
		// A call that begins while answers are sent is drained, too.
		go func() { time.Sleep(settle / 2); call(prepareCall, time.Second) }()
		begin = time.Now()
		if err := calls.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("drained after %v though a call came", took)
		}
		time.Sleep(time.Minute)
	})
}

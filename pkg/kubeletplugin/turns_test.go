package kubeletplugin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpu-dra/driver/pkg/claims"
)

func TestClaimRefs(t *testing.T) {
	a := claims.Ref{Namespace: "ns", Name: "a", UID: "1"}
	tests := map[string]struct {
		req  any
		want []claims.Ref
	}{
		"v1 prepare": {&drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{
			{Uid: "2"}, {Namespace: "ns", Name: "a", Uid: "1"},
		}}, []claims.Ref{{UID: "2"}, a}},
		"v1 unprepare": {&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{
			{Namespace: "ns", Name: "a", Uid: "1"},
		}}, []claims.Ref{a}},
		"v1beta1 prepare": {&drapbv1beta1.NodePrepareResourcesRequest{Claims: []*drapbv1beta1.Claim{
			{Namespace: "ns", Name: "a", Uid: "1"},
		}}, []claims.Ref{a}},
		"v1beta1 unprepare": {&drapbv1beta1.NodeUnprepareResourcesRequest{Claims: []*drapbv1beta1.Claim{
			{Namespace: "ns", Name: "a", Uid: "1"},
		}}, []claims.Ref{a}},
		"no claims":       {&drapb.NodePrepareResourcesRequest{}, nil},
		"another message": {&registerapi.InfoRequest{}, nil},
		"no message":      {"text", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, claimRefs(tc.req)); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// ofUIDs are claims of which nothing else matters.
func ofUIDs(uids ...types.UID) []claims.Ref {
	var refs []claims.Ref
	for _, uid := range uids {
		refs = append(refs, claims.Ref{UID: uid})
	}
	return refs
}

func TestOneCallAtATimeForAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &Calls{}
		begin := time.Now()
		var mu sync.Mutex
		ended := map[string]time.Duration{}
		call := func(name string, uids ...string) {
			req := &drapb.NodePrepareResourcesRequest{}
			for _, uid := range uids {
				req.Claims = append(req.Claims, &drapb.Claim{Uid: uid})
			}
			_, err := calls.Intercept(t.Context(), req, &grpc.UnaryServerInfo{FullMethod: prepareCall},
				func(context.Context, any) (any, error) {
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					ended[name] = time.Since(begin)
					return nil, nil
				})
			if err != nil {
				t.Error(err)
			}
		}
		go call("first", "a", "b")
		synctest.Wait()
		go call("other claim", "c")
		synctest.Wait()
		go call("same claim, twice", "b", "b", "a")
		synctest.Wait()
		if err := calls.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]time.Duration{"first": time.Second, "other claim": time.Second, "same claim, twice": 2 * time.Second}
		if diff := cmp.Diff(want, ended); diff != "" {
			t.Errorf("calls ended (-want +got):\n%s", diff)
		}
		if len(calls.turns.taken) != 0 {
			t.Errorf("turns that nobody has are kept: %v", calls.turns.taken)
		}
	})
}

func TestACallThatGivesUpWaitingLetsOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns
		first, err := all.take(t.Context(), ofUIDs("b"))
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := all.take(short, ofUIDs("a", "b", "c")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("took a turn that another has: %v", err)
		}
		for _, uid := range []types.UID{"a", "c"} {
			back, err := all.take(t.Context(), ofUIDs(uid))
			if err != nil {
				t.Fatal(err)
			}
			back()
		}
		first()
		if len(all.taken) != 0 {
			t.Errorf("turns that nobody has are kept: %v", all.taken)
		}
	})
}

// An unprepare says that it comes before it waits for the prepare of the same claim to end.
func TestUnprepareIsToldBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		superseded := make(chan struct{})
		var told []types.UID
		var done atomic.Bool
		calls := &Calls{Unpreparing: func(claim types.UID) { told = append(told, claim); close(superseded) }}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = calls.Intercept(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "a"}}},
				&grpc.UnaryServerInfo{FullMethod: prepareCall},
				func(context.Context, any) (any, error) {
					<-superseded
					done.Store(true)
					return nil, nil
				})
		}()
		synctest.Wait()
		begin := time.Now()
		_, err := calls.Intercept(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "a"}}},
			&grpc.UnaryServerInfo{FullMethod: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"},
			func(context.Context, any) (any, error) {
				if !done.Load() {
					t.Error("the unprepare runs beside the prepare")
				}
				return nil, nil
			})
		<-ended
		if err != nil || time.Since(begin) != 0 {
			t.Errorf("unprepare ended with %v after %v", err, time.Since(begin))
		}
		if diff := cmp.Diff([]types.UID{"a"}, told); diff != "" {
			t.Errorf("told of (-want +got):\n%s", diff)
		}
	})
}

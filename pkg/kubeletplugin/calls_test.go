package kubeletplugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const prepareCall = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"

func TestRegistrationIsNoticed(t *testing.T) {
	tests := map[string]struct {
		method string
		req    any
		err    error
		want   int
	}{
		"accepted":          {notifyMethod, &registerapi.RegistrationStatus{PluginRegistered: true}, nil, 1},
		"refused":           {notifyMethod, &registerapi.RegistrationStatus{Error: "no"}, nil, 0},
		"answered in error": {notifyMethod, &registerapi.RegistrationStatus{PluginRegistered: true}, errors.New("x"), 0},
		"another call":      {"/pluginregistration.Registration/GetInfo", &registerapi.InfoRequest{}, nil, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := 0
			calls := NewCalls(func() { got++ })
			_, err := calls.Intercept(t.Context(), tc.req, &grpc.UnaryServerInfo{FullMethod: tc.method},
				func(context.Context, any) (any, error) { return nil, tc.err })
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("noticed %d times with error %v, want %d and %v", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestDrainWaitsForClaimCallsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := NewCalls(func() {})
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

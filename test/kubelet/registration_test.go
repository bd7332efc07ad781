package kubelet_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpu-dra/driver/test/kubeapi"
)

// registrar is a registration server that says what it is told to and keeps what it hears.
type registrar struct {
	registerapi.UnsafeRegistrationServer
	info  *registerapi.PluginInfo
	heard chan *registerapi.RegistrationStatus
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.heard <- s
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serve offers info on a registration socket until the test ends.
func (b *bed) serve(file string, info *registerapi.PluginInfo) *registrar {
	b.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", filepath.Join(b.registry, file))
	if err != nil {
		b.Fatal(err)
	}
	r := &registrar{info: info, heard: make(chan *registerapi.RegistrationStatus, 10)}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	b.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return r
}

func TestRegistrationIsRefusedWithAReason(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	taken := k.Instances(driver)[0].Endpoint
	for name, tc := range map[string]struct {
		info *registerapi.PluginInfo
		want string
	}{
		"other type":     {&registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "x"}, "CSIPlugin"},
		"no versions":    {&registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "x"}, "offers"},
		"alien versions": {&registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "x", SupportedVersions: []string{"v9.DRAPlugin"}}, "v9.DRAPlugin"},
		"taken endpoint": {&registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: driver, Endpoint: taken, SupportedVersions: []string{drav1.DRAPluginService}}, "already registered"},
	} {
		r := b.serve(strings.ReplaceAll(name, " ", "-"), tc.info)
		select {
		case s := <-r.heard:
			if s.PluginRegistered || !strings.Contains(s.Error, tc.want) {
				t.Errorf("%s: %+v, want %q", name, s, tc.want)
			}
		case <-b.within().Done():
			t.Fatalf("%s: nothing heard", name)
		}
	}
	if n := len(k.Instances("x")); n != 0 {
		t.Errorf("%d instances of a refused driver", n)
	}
}

func TestWipeIsTriedAgain(t *testing.T) {
	b := newBed(t)
	match := kubeapi.Match{Verbs: []string{"deletecollection"}, Resource: "resourceslices"}
	b.api.Inject(kubeapi.Fault{Match: match, Times: 2, Code: http.StatusForbidden})
	fake := clocktesting.NewFakeClock(time.Now())
	b.kubelet(fake, nil)
	ctx := b.within()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for want := 1; want <= 3; want++ {
		for len(b.api.Requests(match)) < want {
			select {
			case <-tick.C:
				if fake.HasWaiters() {
					fake.Step(2 * time.Second)
				}
			case <-ctx.Done():
				t.Fatalf("%d wipes tried, want %d", len(b.api.Requests(match)), want)
			}
		}
	}
	codes := []int{}
	for _, r := range b.api.Requests(match) {
		codes = append(codes, r.Code)
	}
	if codes[0] != http.StatusForbidden || codes[1] != http.StatusForbidden || codes[2] != http.StatusOK {
		t.Errorf("answers %v", codes)
	}
}

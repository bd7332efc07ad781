package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driver = "gpu.example.com"

// plugin is the smallest DRAPlugin: it prepares what is allocated, and fails where told to.
type plugin struct {
	mu      sync.Mutex
	fail    error
	reports chan kubeletplugin.DeviceHealthReport // nil: no health
}

func (p *plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	result := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		one := kubeletplugin.PrepareResult{Err: p.fail}
		for _, r := range c.Status.Allocation.Devices.Results {
			if p.fail == nil {
				one.Devices = append(one.Devices, kubeletplugin.Device{
					Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device,
					CDIDeviceIDs: []string{driver + "/gpu=" + string(c.UID) + "-" + r.Device},
				})
			}
		}
		result[c.UID] = one
	}
	return result, nil
}

func (p *plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	for _, c := range claims {
		result[c.UID] = nil
	}
	return result, nil
}

func (p *plugin) HandleError(context.Context, error, string) {}

func (p *plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if p.reports == nil {
		return kubeletplugin.ErrHealthNotSupported
	}
	for {
		select {
		case r := <-p.reports:
			select {
			case reports <- r:
			case <-ctx.Done():
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// bed is an API server, a kubelet's directories and what runs on them.
type bed struct {
	testing.TB
	api            *kubeapi.Server
	client         kubernetes.Interface
	registry, data string
}

func newBed(t testing.TB) *bed {
	t.Helper()
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	root, err := os.MkdirTemp("", "k") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	b := &bed{TB: t, api: api, registry: filepath.Join(root, "r"), data: filepath.Join(root, "p")}
	for _, dir := range []string{b.registry, b.data} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.client = b.clientOf("kubelet")
	b.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}})
	return b
}

func (b *bed) put(o *corev1.Node) {
	b.Helper()
	if err := b.api.Put(o); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) clientOf(user string) kubernetes.Interface {
	b.Helper()
	config := b.api.RESTConfig(user)
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(hc.CloseIdleConnections)
	c, err := kubernetes.NewForConfigAndClient(config, hc)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bed) kubelet(c clock.WithTicker, state *kubelet.State) *kubelet.Kubelet {
	b.Helper()
	k, err := kubelet.Start(context.Background(), kubelet.Options{NodeName: "n1", RegistryDir: b.registry, Client: b.client, Clock: c, State: state})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { k.Stop() })
	return k
}

func (b *bed) plugin(p *plugin, opts ...kubeletplugin.Option) *kubeletplugin.Helper {
	b.Helper()
	h, err := kubeletplugin.Start(context.Background(), p, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(driver), kubeletplugin.NodeName("n1"), kubeletplugin.KubeClient(b.clientOf("driver")),
		kubeletplugin.RegistrarDirectoryPath(b.registry), kubeletplugin.PluginDataDirectoryPath(b.data), kubeletplugin.Serialize(false),
	}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(h.Stop)
	return h
}

// claim stores an allocated claim of the given devices, reserved for pods.
func (b *bed) claim(name string, pods []string, devices ...string) kubelet.Claim {
	b.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "r-" + d})
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r-" + d, Driver: driver, Pool: "n1", Device: d})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	if err := b.api.Put(c); err != nil {
		b.Fatal(err)
	}
	return kubelet.ClaimOf(c)
}

func (b *bed) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	b.Cleanup(cancel)
	return ctx
}

// awaitSlices waits until the API has n slices and tells how long that took. Between looks it does each.
func (b *bed) awaitSlices(n int, each ...func() error) time.Duration {
	b.Helper()
	begun := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	ctx := b.within()
	for {
		list, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == n {
			return time.Since(begun)
		}
		for _, do := range each {
			if err := do(); err != nil {
				b.Fatal(err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.Fatalf("want %d slices: have %d, %v", n, len(list.Items), err)
		}
	}
}

func resources(devices ...string) resourceslice.DriverResources {
	var s resourceslice.Slice
	for _, d := range devices {
		s.Devices = append(s.Devices, resourceapi.Device{Name: d})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": {Slices: []resourceslice.Slice{s}}}}
}

func TestRegisterPrepareUnprepare(t *testing.T) {
	for name, tc := range map[string]struct {
		opts            []kubeletplugin.Option
		service, health string
	}{
		"newest": {nil, drav1.DRAPluginService, drahealthv1.DRAResourceHealthService},
		"older": {
			[]kubeletplugin.Option{kubeletplugin.NodeV1(false), kubeletplugin.HealthV1(false)},
			drav1beta1.DRAPluginService, drahealthv1alpha1.DRAResourceHealthService,
		},
		"no health": {[]kubeletplugin.Option{kubeletplugin.HealthService(false)}, drav1.DRAPluginService, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			k := b.kubelet(nil, nil)
			c := b.claim("c", nil, "gpu-0", "gpu-1")
			if _, err := k.Prepare(b.within(), driver, c); !errors.Is(err, kubelet.ErrNotRegistered) {
				t.Errorf("prepare without a plugin: %v", err)
			}
			b.plugin(&plugin{}, tc.opts...)
			if err := k.WaitForDriver(b.within(), driver); err != nil {
				t.Fatal(err)
			}
			if i := k.Instances(driver)[0]; i.Service != tc.service || i.HealthService != tc.health {
				t.Errorf("chose %s and %q, want %s and %q", i.Service, i.HealthService, tc.service, tc.health)
			}
			got, err := k.Prepare(b.within(), driver, c)
			if err != nil || got[c.UID].Err != nil {
				t.Fatal(err, got[c.UID].Err)
			}
			want := []kubelet.Device{
				{Requests: []string{"r-gpu-0"}, Pool: "n1", Name: "gpu-0", CDIDeviceIDs: []string{driver + "/gpu=uid-c-gpu-0"}},
				{Requests: []string{"r-gpu-1"}, Pool: "n1", Name: "gpu-1", CDIDeviceIDs: []string{driver + "/gpu=uid-c-gpu-1"}},
			}
			if diff := cmp.Diff(want, got[c.UID].Devices); diff != "" {
				t.Errorf("prepared (-want +got):\n%s", diff)
			}
			failed, err := k.Unprepare(b.within(), driver, c)
			if err != nil || failed[c.UID] != nil {
				t.Error(err, failed[c.UID])
			}
			calls := k.Calls()
			if len(calls) != 2 || calls[0].Method != "NodePrepareResources" || calls[1].Method != "NodeUnprepareResources" || calls[0].Took <= 0 {
				t.Errorf("calls: %+v", calls)
			}
		})
	}
}

func TestFailuresAreReported(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	b.plugin(&plugin{fail: errors.New("no such board")})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	c := b.claim("c", nil, "gpu-0")
	got, err := k.Prepare(b.within(), driver, c)
	if err != nil || got[c.UID].Err == nil || !strings.Contains(got[c.UID].Err.Error(), "no such board") {
		t.Errorf("prepare: %v, %v", got, err)
	}
	if _, err := k.Prepare(b.within(), driver, kubelet.Claim{Namespace: "default", Name: "absent", UID: "x"}); err == nil {
		t.Error("prepare of an absent claim worked")
	}
	if n := len(k.Calls()); n != 2 {
		t.Errorf("%d calls recorded, want 2", n)
	}
	for _, call := range k.Calls() {
		if call.Err == nil {
			t.Errorf("%s of %v recorded as good", call.Method, call.Claims)
		}
	}
	k.ResetCalls()
	if n := len(k.Calls()); n != 0 {
		t.Errorf("%d calls after reset", n)
	}
}

func TestPublishWipePublishAgainAndRestartWithoutWrites(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	h := b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	if err := h.PublishResources(context.Background(), resources("gpu-0")); err != nil {
		t.Fatal(err)
	}
	t.Logf("first publish visible after %v", b.awaitSlices(1))

	state := k.Stop()
	b.kubelet(nil, state)
	t.Logf("kubelet's start wiped the slices after %v", b.awaitSlices(0))
	// A publication may come before the controller has heard of the wipe, and then does nothing: repeat it.
	t.Logf("published again after %v", b.awaitSlices(1, func() error {
		return h.PublishResources(context.Background(), resources("gpu-0"))
	}))

	h.Stop()
	b.api.ResetRequests()
	again := b.plugin(&plugin{})
	if err := again.PublishResources(context.Background(), resources("gpu-0")); err != nil {
		t.Fatal(err)
	}
	// A second, different publication is behind the first in the controller's queue: once it is seen,
	// the first has been dealt with.
	before := b.api.Requests(kubeapi.Match{User: "driver", Writes: true})
	if err := again.PublishResources(context.Background(), resources("gpu-0", "gpu-1")); err != nil {
		t.Fatal(err)
	}
	ctx := b.within()
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		if len(b.api.Requests(kubeapi.Match{User: "driver", Writes: true})) > len(before) || ctx.Err() != nil {
			tick.Stop()
			break
		}
	}
	writes := b.api.Requests(kubeapi.Match{User: "driver", Writes: true})
	if len(before) != 0 || len(writes) != 1 || writes[0].Verb != "update" {
		t.Errorf("writes after a restart: %+v, then %+v, want none, then one update", before, writes)
	}
}

func TestAbsentDriverIsWiped(t *testing.T) {
	b := newBed(t)
	fake := clocktesting.NewFakeClock(time.Now())
	k := b.kubelet(fake, nil)
	h := b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	if err := h.PublishResources(context.Background(), resources("gpu-0")); err != nil {
		t.Fatal(err)
	}
	b.awaitSlices(1)
	gone := func(all []kubelet.Instance) bool { return len(all) == 0 }
	h.Stop()
	if err := k.WaitFor(b.within(), driver, gone); err != nil {
		t.Fatal(err)
	}
	fake.Step(kubelet.AbsenceDelay - time.Second)
	// Back in time: nothing is wiped, and the countdown begins anew.
	h = b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	fake.Step(time.Minute)
	b.awaitSlices(1)
	h.Stop()
	if err := k.WaitFor(b.within(), driver, gone); err != nil {
		t.Fatal(err)
	}
	fake.Step(kubelet.AbsenceDelay)
	b.awaitSlices(0)
	deletes := b.api.Requests(kubeapi.Match{User: "kubelet", Verbs: []string{"deletecollection"}})
	if len(deletes) != 2 { // at start, and now
		t.Errorf("%d wipes, want 2", len(deletes))
	}
}

func TestNewestInstanceGetsTheCalls(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	c := b.claim("c", nil, "gpu-0")
	old := b.plugin(&plugin{}, kubeletplugin.RollingUpdate("aaaaaaaa-0000"))
	connected := func(n int) func([]kubelet.Instance) bool {
		return func(all []kubelet.Instance) bool {
			return len(all) == n && !slices.ContainsFunc(all, func(i kubelet.Instance) bool { return !i.Connected })
		}
	}
	if err := k.WaitFor(b.within(), driver, connected(1)); err != nil {
		t.Fatal(err)
	}
	niu := b.plugin(&plugin{}, kubeletplugin.RollingUpdate("bbbbbbbb-0000"))
	if err := k.WaitFor(b.within(), driver, connected(2)); err != nil {
		t.Fatal(err)
	}
	answeredBy := func() string {
		t.Helper()
		if _, err := k.Prepare(b.within(), driver, c); err != nil {
			t.Fatal(err)
		}
		calls := k.Calls()
		return calls[len(calls)-1].Endpoint
	}
	if got := answeredBy(); !strings.Contains(got, "bbbbbbbb") {
		t.Errorf("answered by %s, want the newer", got)
	}
	niu.Stop()
	if err := k.WaitFor(b.within(), driver, connected(1)); err != nil {
		t.Fatal(err)
	}
	if got := answeredBy(); !strings.Contains(got, "aaaaaaaa") {
		t.Errorf("answered by %s, want the older that is left", got)
	}
	old.Stop()
}

func TestHealth(t *testing.T) {
	for name, opts := range map[string][]kubeletplugin.Option{
		"v1": nil, "v1alpha1": {kubeletplugin.HealthV1(false)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			fake := clocktesting.NewFakeClock(time.Now())
			k := b.kubelet(fake, nil)
			p := &plugin{reports: make(chan kubeletplugin.DeviceHealthReport)}
			h := b.plugin(p, opts...)
			report := kubeletplugin.DeviceHealth{PoolName: "n1", DeviceName: "gpu-0", Health: kubeletplugin.HealthStatusUnhealthy, Message: "XID 79"}
			p.reports <- kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{report}}
			id := kubelet.DeviceID{Pool: "n1", Device: "gpu-0"}
			sick := func(all map[kubelet.DeviceID]kubelet.DeviceHealth) bool { return all[id].Health == kubelet.Unhealthy }
			if err := k.WaitForHealth(b.within(), driver, sick); err != nil {
				t.Fatal(err)
			}
			if got := k.Health(driver)[id].Message; got != report.Message {
				t.Errorf("message %q, want %q", got, report.Message)
			}
			fake.Step(kubelet.DefaultHealthExpiry + time.Second)
			if got := k.Health(driver)[id].Health; got != kubelet.Unknown {
				t.Errorf("%s after the report expired, want Unknown", got)
			}
			h.Stop()
			if err := k.WaitForHealth(b.within(), driver, func(all map[kubelet.DeviceID]kubelet.DeviceHealth) bool { return len(all) == 0 }); err != nil {
				t.Error(err)
			}
			if n := k.HealthReports(driver); n != 1 {
				t.Errorf("%d reports, want 1", n)
			}
		})
	}
}

func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	all := corev1.Container{Name: "all"}
	for i, c := range claims {
		ref := fmt.Sprintf("claim-%d", i)
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: ref, ResourceClaimName: &c})
		all.Resources.Claims = append(all.Resources.Claims, corev1.ResourceClaim{Name: ref})
	}
	one := corev1.Container{Name: "one", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "claim-0", Request: "r-gpu-1"}}}}
	p.Spec.Containers = []corev1.Container{all, one, {Name: "none"}}
	return p
}

func methods(k *kubelet.Kubelet) []string {
	var all []string
	for _, c := range k.Calls() {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Resources"))
	}
	return all
}

func TestPodsShareAClaimOverARestart(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	b.claim("c", []string{"p1", "p2"}, "gpu-0", "gpu-1")
	got, err := k.PreparePod(b.within(), pod("p1", "c"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"all": {driver + "/gpu=uid-c-gpu-0", driver + "/gpu=uid-c-gpu-1"}, "one": {driver + "/gpu=uid-c-gpu-1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CDI ids (-want +got):\n%s", diff)
	}
	if _, err := k.PreparePod(b.within(), pod("p1", "c")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Prepare"}, methods(k)); diff != "" {
		t.Errorf("a prepared claim is not prepared again (-want +got):\n%s", diff)
	}
	k = b.kubelet(nil, k.Stop())
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	if got, err = k.PreparePod(b.within(), pod("p2", "c")); err != nil || !cmp.Equal(want, got) {
		t.Errorf("second pod after a restart: %v, %v", got, err)
	}
	for _, p := range []types.UID{"uid-p1", "uid-p2", "uid-p2"} {
		if err := k.UnpreparePod(b.within(), p); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"Prepare", "Unprepare"}, methods(k)); diff != "" {
		t.Errorf("calls after the restart (-want +got):\n%s", diff)
	}
}

func TestPodsThatMayNotRun(t *testing.T) {
	b := newBed(t)
	k := b.kubelet(nil, nil)
	p := &plugin{fail: errors.New("injected")}
	b.plugin(p)
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	b.claim("reserved", []string{"p1"}, "gpu-0")
	free := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "free"}}
	if err := b.api.Put(free); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ pod, claim, want string }{
		{"p1", "absent", "not found"}, {"p1", "free", "not allocated"}, {"p2", "reserved", "not reserved"}, {"p1", "reserved", "injected"},
	} {
		if _, err := k.PreparePod(b.within(), pod(tc.pod, tc.claim)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("pod %s with claim %s: %v, want %q", tc.pod, tc.claim, err, tc.want)
		}
	}
	// What failed to prepare is unprepared all the same.
	if err := k.UnpreparePod(b.within(), "uid-p1"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"Prepare", "Unprepare"}, methods(k)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestOtherFilesInTheRegistryAreLeftAlone(t *testing.T) {
	b := newBed(t)
	if err := os.WriteFile(filepath.Join(b.registry, "README"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := b.kubelet(nil, nil)
	b.plugin(&plugin{})
	if err := k.WaitForDriver(b.within(), driver); err != nil {
		t.Fatal(err)
	}
	if n := len(k.Instances(driver)); n != 1 {
		t.Errorf("%d instances, want 1", n)
	}
	if _, err := kubelet.Start(context.Background(), kubelet.Options{RegistryDir: filepath.Join(b.registry, "absent")}); err == nil {
		t.Error("started on a directory that is not there")
	}
}

func BenchmarkPrepareUnprepare(b *testing.B) {
	bed := newBed(b)
	k := bed.kubelet(nil, nil)
	bed.plugin(&plugin{})
	if err := k.WaitForDriver(bed.within(), driver); err != nil {
		b.Fatal(err)
	}
	c := bed.claim("c", nil, "gpu-0")
	ctx := context.Background()
	for b.Loop() {
		if _, err := k.Prepare(ctx, driver, c); err != nil {
			b.Fatal(err)
		}
		if _, err := k.Unprepare(ctx, driver, c); err != nil {
			b.Fatal(err)
		}
	}
}

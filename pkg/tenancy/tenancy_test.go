package tenancy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/prepare/migsteps"
	"github.com/gpu-dra/driver/pkg/tenancy"
	"github.com/gpu-dra/driver/pkg/topology"
)

// node is a machine whose first GPU has one partition that somebody made.
type node struct {
	records []*journal.Record
	err     error
	devices map[string]device.Device
}

func (n *node) List() ([]*journal.Record, []journal.Bad, error) { return n.records, nil, n.err }

const (
	whole = "gpu-0000-43-00-0"
	fixed = "gpu-0000-1b-00-0-mig-1g-10gb-0"
	made  = "gpu-0000-1b-00-0-mig-2g-20gb-2"
)

func newNode(t testing.TB) *node {
	t.Helper()
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs[0] = migtest.With(t, s.GPUs[0], false, "1g.10gb:0")
	n := &node{devices: map[string]device.Device{}}
	for _, d := range device.FromPartitionedSnapshot(s, topology.Assignment{}, nil).Devices {
		n.devices[d.Name()] = d
	}
	return n
}

// has gives a part of a record about one of the node's devices.
func (n *node) has(t testing.TB, name, request string) journal.Device {
	t.Helper()
	d, ok := n.devices[name]
	if !ok {
		t.Fatalf("the node has no device %s", name)
	}
	id := d.Identity()
	return journal.Device{Request: request, Name: name, Kind: string(d.Kind()), PCI: id.PCI, GPUUUID: id.GPUUUID, Partition: id.Partition}
}

func prepared(name string, devices ...journal.Device) *journal.Record {
	return &journal.Record{Namespace: "team", Name: name, UID: types.UID("uid-of-" + name), State: journal.StatePrepared, Devices: devices}
}

func step() journal.Step {
	return journal.Step{Kind: migsteps.KindInstance, Output: jsontext.Value(`{"gpuInstance":5,"computeInstance":0,"uuid":"MIG-made"}`)}
}

func TestOf(t *testing.T) {
	n := newNode(t)
	share := types.UID("share-1")
	onDemand := n.has(t, made, "part")
	onDemand.Steps = []journal.Step{{Kind: migsteps.KindMode}, step()}
	admin := n.has(t, made, "watch")
	admin.AdminAccess = true
	shared := n.has(t, whole, "half")
	shared.ShareID, shared.MemoryBytes = &share, 1<<30
	static := n.has(t, fixed, "part")
	gone := static
	gone.Name = "gpu-0000-99-00-0-mig-1g-10gb-0"
	unfinished := prepared("unfinished", n.has(t, whole, "gpu"))
	unfinished.State = journal.StateStarted
	pods := func(uid types.UID) []tenancy.Pod { return []tenancy.Pod{{Name: "pod-of-" + string(uid), UID: "1"}} }
	claim := func(name, request string) tenancy.Claim {
		uid := types.UID("uid-of-" + name)
		return tenancy.Claim{Namespace: "team", Name: name, UID: uid, Request: request, Pods: pods(uid)}
	}
	number := func(n int) *int { return &n }

	half := claim("b", "half")
	half.ShareID, half.MemoryBytes = share, 1<<30
	watch := claim("a", "watch")
	watch.AdminAccess = true
	gpu, part := n.devices[whole].(device.GPU), n.devices[fixed].(device.MIG)
	parent := part.Parent().UUID
	want := []tenancy.Device{
		{
			Name: fixed, Type: "mig", UUID: part.UUID(), ParentUUID: parent, Profile: "1g.10gb", PCIBusID: "0000:1b:00.0",
			GPUInstance: number(part.Instance().ID), ComputeInstance: number(0), Claims: []tenancy.Claim{claim("b", "part")},
		},
		{
			Name: made, Type: "mig", UUID: "MIG-made", ParentUUID: parent, Profile: "2g.20gb", PCIBusID: "0000:1b:00.0",
			GPUInstance: number(5), ComputeInstance: number(0), Claims: []tenancy.Claim{watch, claim("c", "part")},
		},
		{
			Name: whole, Type: "gpu", UUID: gpu.UUID(), PCIBusID: "0000:43:00.0",
			Claims: []tenancy.Claim{claim("a", "gpu"), half},
		},
		// A device that left the node: what the record knows is still true.
		{
			Name: gone.Name, Type: "mig", ParentUUID: parent, Profile: "1g.10gb", PCIBusID: "0000:1b:00.0",
			Claims: []tenancy.Claim{claim("d", "part")},
		},
	}
	records := []*journal.Record{
		prepared("c", onDemand), prepared("b", shared, static), unfinished, prepared("a", n.has(t, whole, "gpu"), admin), prepared("d", gone),
	}
	if diff := cmp.Diff(want, tenancy.Of(records, n.devices, pods)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// However records are ordered, the answer is the same, and no claim is lost or told twice.
func TestOfIsComplete(t *testing.T) {
	n := newNode(t)
	names := []string{whole, fixed, made, "gpu-0000-52-00-0"}
	rapid.Check(t, func(rt *rapid.T) {
		var records []*journal.Record
		parts := 0
		for i := range rapid.IntRange(0, 6).Draw(rt, "claims") {
			r := prepared(fmt.Sprintf("c%d", i))
			for j, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 4, rapid.ID).Draw(rt, "devices") {
				r.Devices = append(r.Devices, n.has(t, name, fmt.Sprintf("r%d", j)))
				parts++
			}
			records = append(records, r)
		}
		none := func(types.UID) []tenancy.Pod { return nil }
		first := tenancy.Of(records, n.devices, none)
		if diff := cmp.Diff(first, tenancy.Of(rapid.Permutation(records).Draw(rt, "order"), n.devices, none)); diff != "" {
			rt.Fatalf("another order gives something else:\n%s", diff)
		}
		found := 0
		for _, d := range first {
			found += len(d.Claims)
		}
		if found != parts {
			rt.Fatalf("%d of %d", found, parts)
		}
	})
}

func claimOf(name string, consumers ...resourceapi.ResourceClaimConsumerReference) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-of-" + name)},
		Status:     resourceapi.ResourceClaimStatus{ReservedFor: consumers},
	}
}

func pod(name string) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID("uid-of-" + name)}
}

// api answers with one claim, or fails.
type api struct {
	claim *resourceapi.ResourceClaim
	err   error
}

func (a api) Get(context.Context, string, metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	return a.claim, a.err
}

func TestPodsAreThoseLastSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.records = []*journal.Record{prepared("a", n.has(t, whole, "gpu"))}
		r := &tenancy.Register{Records: n, Devices: func() map[string]device.Device { return n.devices }}
		expect := func(what string, want ...string) {
			t.Helper()
			tenants, err := r.Tenants()
			if err != nil || len(tenants) != 1 {
				t.Fatalf("%s: %d devices, %v", what, len(tenants), err)
			}
			var got []string
			for _, p := range tenants[0].Claims[0].Pods {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		expect("nobody read the claim")
		job := resourceapi.ResourceClaimConsumerReference{APIGroup: "batch", Resource: "jobs", Name: "job"}
		r.Saw(claimOf("a", pod("two"), job, pod("one")))
		expect("as it was prepared", "one", "two")
		get := func(a api) {
			if got, err := r.Through(a).Get(t.Context(), "a", metav1.GetOptions{}); got != a.claim || !errors.Is(err, a.err) {
				t.Errorf("what is read is not passed on: %v, %v", got, err)
			}
		}
		get(api{err: errors.New("away")})
		expect("a failure says nothing", "one", "two")
		get(api{claim: claimOf("a", pod("three"))})
		expect("as somebody read it", "three")

		// A claim that is read before it has a record is kept for a while, and no longer.
		r.Saw(claimOf("b", pod("four")))
		expect("the other claim", "three")
		n.records = []*journal.Record{prepared("b", n.has(t, whole, "gpu"))}
		expect("its record came", "four")
		time.Sleep(time.Hour)
		expect("a record keeps what is known", "four")
		n.records = nil
		if _, err := r.Tenants(); err != nil {
			t.Fatal(err)
		}
		n.records = []*journal.Record{prepared("b", n.has(t, whole, "gpu"))}
		expect("it was gone in between")
	})
}

func TestEndpoint(t *testing.T) {
	n := newNode(t)
	n.records = []*journal.Record{prepared("a", n.has(t, whole, "gpu"))}
	r := &tenancy.Register{Records: n, Devices: func() map[string]device.Device { return n.devices }}
	r.Saw(claimOf("a", pod("one")))
	ask := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r.Handler("gpu.nvidia.com", "node-1").ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w
	}
	w := ask(http.MethodGet, tenancy.Path)
	const want = `{"version":"v1","driver":"gpu.nvidia.com","pool":"node-1","devices":[{"name":"gpu-0000-43-00-0","type":"gpu",` +
		`"uuid":"%s","pciBusID":"0000:43:00.0","claims":[{"namespace":"team","name":"a","uid":"uid-of-a","request":"gpu",` +
		`"pods":[{"name":"one","uid":"uid-of-one"}]}]}]}`
	var got, wanted any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(fmt.Appendf(nil, want, n.devices[whole].(device.GPU).UUID()), &wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%v (-want +got):\n%s", w.Header(), diff)
	}
	if code := ask(http.MethodPost, tenancy.Path).Code; code != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered with %d", code)
	}
	n.records = nil
	if body := ask(http.MethodGet, tenancy.Path).Body.String(); !strings.Contains(body, `"devices": []`) {
		t.Errorf("without a claim the list is not empty: %s", body)
	}
	n.err = errors.New("no such disk")
	if w := ask(http.MethodGet, tenancy.Path); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no such disk") {
		t.Errorf("unreadable records: %d %s", w.Code, w.Body)
	}
}

func BenchmarkTenants(b *testing.B) {
	n := newNode(b)
	for i := range 64 {
		n.records = append(n.records, prepared(fmt.Sprintf("c%d", i), n.has(b, whole, "gpu"), n.has(b, made, "part")))
	}
	r := &tenancy.Register{Records: n, Devices: func() map[string]device.Device { return n.devices }}
	for b.Loop() {
		if _, err := r.Tenants(); err != nil {
			b.Fatal(err)
		}
	}
}

// Where nobody asks, claims that come and go are not remembered for ever, and those that are there
// are not forgotten.
func TestClaimsOfLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.records = []*journal.Record{{Name: "a", UID: "uid-of-a", State: journal.StatePrepared, Devices: []journal.Device{n.has(t, whole, "gpu")}}}
		lists := &counted{node: n}
		r := &tenancy.Register{Records: lists, Devices: func() map[string]device.Device { return n.devices }}
		r.Saw(claimOf("a", pod("one")))
		for i := range 4000 {
			r.Saw(claimOf(fmt.Sprint(i), pod("two")))
			time.Sleep(time.Second)
		}
		if r.Remembered() > 400 || lists.n > 40 {
			t.Errorf("%d claims are remembered, and the records were read %d times", r.Remembered(), lists.n)
		}
		tenants, err := r.Tenants()
		if err != nil || len(tenants) != 1 || len(tenants[0].Claims[0].Pods) != 1 {
			t.Errorf("%+v, %v", tenants, err)
		}
	})
}

type counted struct {
	*node
	n int
}

func (c *counted) List() ([]*journal.Record, []journal.Bad, error) {
	c.n++
	return c.node.List()
}

package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const objects = `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: b, namespace: team-a}
- apiVersion: v1
  kind: Node
  metadata: {name: node-9}
---
# Nothing here.
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: team-a}
---
apiVersion: example.com/v1
kind: Unheard
metadata: {name: x}
---
just: text
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimList
items:
- metadata: {name: c, namespace: team-a}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: team-a}
---
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: r}
---
apiVersion: v1
kind: Event
metadata: {name: e, namespace: team-a}
---
{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"nodeName": "node-1"}}
`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Files and folders of lists, documents and JSON give all objects, in an order of their own.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "all.yaml", objects)
	write(t, dir, "sub/more.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "0", "namespace": "team-a"}}`)
	write(t, dir, "sub/log.txt", "not: [an object")
	s, err := state.FromFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for _, p := range s.Pods {
		pods = append(pods, p.Name)
	}
	if diff := cmp.Diff([]string{"0", "a", "b"}, pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	counts := []int{len(s.Slices), len(s.Classes), len(s.Claims), len(s.Templates), len(s.TaintRules), len(s.Nodes), len(s.Events)}
	if diff := cmp.Diff([]int{1, 1, 1, 1, 1, 1, 1}, counts); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"node-1", "node-9"}, s.NodeNames()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "broken.yaml", "a: [b")
	write(t, dir, "old.yaml", "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: x}\n")
	write(t, dir, "wrong.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [x]}\n")
	write(t, dir, "text.yaml", "---\n---\nhello there, this is a text\n")
	write(t, dir, "list.json", "[1, 2]")
	for file, word := range map[string]string{
		"text.yaml": `document 1 is no object of Kubernetes, it begins with "hello there, this i: take it out`, "list.json": "document 1 is no object of Kubernetes, it begins with [1,2]",
		"broken.yaml": "document 1", "old.yaml": "only resource.k8s.io/v1 is understood", "wrong.yaml": "document 1", "none.yaml": "no such file",
	} {
		if _, err := state.FromFiles(filepath.Join(dir, file)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", file, err, word)
		}
	}
}

func TestFind(t *testing.T) {
	s := &state.State{}
	Add(t, s, objects)
	_, pod := s.Pod("team-a", "a")
	_, claim := s.Claim("team-a", "c")
	_, template := s.Template("team-a", "t")
	_, class := s.Class("gpu.nvidia.com")
	if err := errors.Join(pod, claim, template, class); err != nil {
		t.Error(err)
	}
	var missing *state.NotFound
	if _, err := s.Pod("team-b", "a"); !errors.As(err, &missing) || err.Error() != "Pod a was not found in namespace team-b" {
		t.Errorf("%v", err)
	}
	if _, err := s.Class("none"); !errors.As(err, &missing) || err.Error() != "DeviceClass none was not found" {
		t.Errorf("%v", err)
	}
	if n := s.Node("node-1"); n.Name != "node-1" {
		t.Errorf("a node that slices name: %v", n)
	}
}

// A cluster is read whole. What the user may not read is named; slices and classes are needed, and
// a kind that is not served has no objects.
func TestCluster(t *testing.T) {
	have := &state.State{}
	Add(t, have, objects)
	client := func(verdict map[string]error) *fake.Clientset {
		c := fake.NewClientset(have.Pods[0], have.Claims[0], have.Slices[0], have.Classes[0], have.Nodes[0], have.Templates[0])
		for kind, err := range verdict {
			c.PrependReactor("list", kind, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
		}
		return c
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no"))
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "x"}, "")
	s, err := state.FromCluster(t.Context(), client(map[string]error{"pods": forbidden, "devicetaintrules": notFound}))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Slices) != 1 || len(s.Claims) != 1 || len(s.Nodes) != 1 || len(s.Pods) != 0 {
		t.Errorf("read %+v", s)
	}
	if len(s.Unread) != 1 || s.Unread[0].Kind != "Pods" || !strings.Contains(s.Unread[0].String(), "forbidden") {
		t.Errorf("unread %v", s.Unread)
	}
	if _, err := state.FromCluster(t.Context(), client(map[string]error{"resourceslices": forbidden})); err == nil || !strings.Contains(err.Error(), "ResourceSlices") {
		t.Errorf("without slices: %v", err)
	}
}

func one(t *testing.T, s *state.State, name string) state.Device {
	t.Helper()
	for _, d := range s.Devices() {
		if d.Pool+"/"+d.Name == name {
			return d
		}
	}
	t.Fatalf("no device %s", name)
	return state.Device{}
}

func TestOwners(t *testing.T) {
	s := Machines(t, "two-islands", 2, false)
	gpus := Names(s, "node-1", "gpu")
	Take(s, "train", gpus[0], gpus[1])
	Look(s, "monitor", gpus...)
	taken, looked := one(t, s, gpus[1]), one(t, s, gpus[2])
	if taken.Free() || !looked.Free() {
		t.Errorf("taken is free: %t, looked at is free: %t", taken.Free(), looked.Free())
	}
	var owners []string
	for _, o := range taken.Owners {
		owners = append(owners, o.String())
	}
	if diff := cmp.Diff([]string{"team-a/train → train", "team-a/monitor → monitor (admin access)"}, owners); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if d := one(t, s, Names(s, "node-0", "gpu")[1]); len(d.Owners) != 0 {
		t.Errorf("the device of the same name on another node has owners %v", d.Owners)
	}
}

func TestTaints(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	gpus := Names(s, "node-0", "gpu")
	Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, gpus[0])
	Taint(s, "example.com/note", resourceapi.DeviceTaintEffectNone, gpus[1])
	for i, free := range []bool{false, true, true} {
		if d := one(t, s, gpus[i]); d.Free() != free {
			t.Errorf("%s with taints %v is free: %t", d.Name, d.Spec.Taints, d.Free())
		}
	}
	tainted := 0
	for _, slice := range s.Tainted() {
		for _, d := range slice.Spec.Devices {
			tainted += len(d.Taints)
		}
	}
	if tainted != 2 || len(s.Slices[0].Spec.Devices[0].Taints) != 0 {
		t.Errorf("%d taints in the slices for the scheduler; the published one has %v", tainted, s.Slices[0].Spec.Devices[0].Taints)
	}
}

// A partition takes the whole GPU, and only the partitions that overlap it.
func TestCounters(t *testing.T) {
	s := Machines(t, "hgx-h100-8", 1, true)
	gpu := Names(s, "node-0", "gpu")[0]
	small := gpu + "-mig-1g-10gb-0"
	Take(s, "notebook", small)
	for name, want := range map[string]bool{gpu: false, gpu + "-mig-7g-80gb-0": false, gpu + "-mig-1g-10gb-1": true, gpu + "-mig-3g-40gb-4": true, gpu + "-mig-3g-40gb-0": false} {
		d := one(t, s, name)
		if d.Free() != want {
			t.Errorf("%s is free: %t (%s)", name, d.Free(), d.Blocked)
		}
		if !want && !strings.Contains(d.Blocked, "1g-10gb-0") {
			t.Errorf("%s is blocked by %q", name, d.Blocked)
		}
	}
	var ones []state.Device
	for _, d := range s.Devices() {
		if strings.HasPrefix(d.Name, strings.TrimPrefix(gpu, "node-0/")) && d.Text("profile") == "1g.10gb" && d.Free() {
			ones = append(ones, d)
		}
	}
	set := ones[0].Spec.ConsumesCounters[0].CounterSet
	if most := s.Counters().AtMost(set, ones); most != 6 {
		t.Errorf("at most %d more of 1g.10gb, want 6", most)
	}
}

func TestGenerations(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	if got := s.Incomplete(); len(got) != 0 {
		t.Errorf("incomplete: %v", got)
	}
	newer := s.Slices[0].DeepCopy()
	newer.Name, newer.Spec.Pool.Generation, newer.Spec.Pool.ResourceSliceCount = "newer", 2, 2
	newer.Spec.Devices = newer.Spec.Devices[:1]
	s.Slices = append(s.Slices, newer)
	if devices := s.Devices(); len(devices) != 1 {
		t.Errorf("%d devices of the newest generation", len(devices))
	}
	got := s.Incomplete()
	if len(got) != 1 || got[0] != (state.Incomplete{Driver: Driver, Pool: "node-0", Have: 1, Want: 2}) || !strings.Contains(got[0].String(), "1 of 2 slices") {
		t.Errorf("incomplete: %v", got)
	}
}

// Whatever a file holds, reading it ends with objects or an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(objects))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[null, 1]}]}`))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: 3\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		found, err := state.Decode(data)
		if err != nil {
			return
		}
		s := &state.State{}
		for _, o := range found {
			if s.Add(o) != nil {
				return
			}
		}
		s.Devices()
		s.Incomplete()
		s.NodeNames()
	})
}

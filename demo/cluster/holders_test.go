package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// claim is one that was given devices of the node "node".
func claim(space, name string, users []string, devices ...string) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: rig.Driver, Pool: "node", Device: d})
	}
	for _, u := range users {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: u})
	}
	return c
}

func TestHolders(t *testing.T) {
	var gpus []rig.GPU
	for _, n := range []string{"0", "1", "2", "3", "4"} {
		gpus = append(gpus, rig.GPU{Node: "node", Device: "gpu-" + n, UUID: "GPU-" + n})
	}
	looks := claim("ops", "looks", []string{"monitor"}, "gpu-4")
	looks.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	other := claim("net", "nic", []string{"router"}, "gpu-4")
	other.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	got := holders([]resourceapi.ResourceClaim{
		claim("demo", "pair", []string{"count-2"}, "gpu-0", "gpu-1"),
		claim("default", "shared", []string{"a", "b"}, "gpu-2"),
		claim("default", "kept", nil, "gpu-3"),
		claim("default", "of-a-gone-node", []string{"c"}, "gpu-9"),
		looks, other,
		{ObjectMeta: metav1.ObjectMeta{Name: "waits"}},
	}, gpus)
	want := map[string]string{
		"GPU-0": "demo/count-2", "GPU-1": "demo/count-2", "GPU-2": "default/a,default/b", "GPU-3": "claim default/kept",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

// TestRoomFor takes from islands that are given away in the order 4 5 6 7, 0 1 2 3.
func TestRoomFor(t *testing.T) {
	for name, c := range map[string]struct {
		held string
		want bool
	}{
		"nobody":                              {want: true},
		"one of the first island":             {held: "4", want: true},
		"two of the first island":             {held: "67", want: true},
		"three: the pair breaks the other":    {held: "456"},
		"all of the first: the same":          {held: "4567"},
		"one of the last: the pair breaks it": {held: "0"},
		"one of each":                         {held: "40"},
		"all":                                 {held: "01234567"},
	} {
		held := map[string]string{}
		for _, n := range c.held {
			held["GPU-"+string(n)] = "default/x"
		}
		if got := roomFor(islands(), held); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	if !roomFor(nil, nil) {
		t.Error("nothing is published yet, and that is no reason to refuse")
	}
	if roomFor([]rig.GPU{{UUID: "0"}, {UUID: "1"}, {UUID: "2"}, {UUID: "3"}, {UUID: "4"}, {UUID: "5"}, {UUID: "6"}}, map[string]string{"0": "x"}) {
		t.Error("GPUs without NVLink are taken for an island")
	}
}

// published is a slice of the eight GPUs of islands.
func published() *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Spec:       resourceapi.ResourceSliceSpec{Driver: rig.Driver, Pool: resourceapi.ResourcePool{Name: "node", ResourceSliceCount: 1}},
	}
	for _, g := range islands() {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: g.Device, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"uuid": {StringValue: ptr.To(g.UUID)}, "nvlinkDomain": {StringValue: ptr.To(g.Domain)},
			},
		})
	}
	return s
}

func TestRoom(t *testing.T) {
	former := claim(namespace, "former", []string{"four"}, "gpu-0", "gpu-1", "gpu-2", "gpu-3")
	mine := claim("default", "mine", []string{"x"}, "gpu-4", "gpu-5")
	also := claim("team", "also", []string{"y"}, "gpu-3")
	d := &demo{client: fake.NewClientset(published(), &former, &mine)}
	if err := d.room(t.Context()); err != nil {
		t.Errorf("a former run and two of one island: %v", err)
	}
	d.client = fake.NewClientset(published(), &mine, &also)
	err := d.room(t.Context())
	if !errors.Is(err, errNoRoom) || !strings.Contains(err.Error(), "hold 3 GPUs (default/x, team/y)") || !strings.Contains(err.Error(), "make demo-cluster-down") {
		t.Errorf("no island is whole: %v", err)
	}
}

func TestState(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if got := state(pod); got != "Pending" {
		t.Errorf("not looked at yet: %q", got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "cannot allocate all claims"}}
	if got := state(pod); got != "Pending: cannot allocate all claims" {
		t.Errorf("without a node: %q", got)
	}
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	if got := state(pod); got != "Pending" {
		t.Errorf("with a node: %q", got)
	}
}

func TestImageValues(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	if _, err := imageValues(archive); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no image: %v", err)
	}
	seen := map[string]bool{}
	for _, text := range []string{"one", "another", "one"} {
		if err := os.WriteFile(archive, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		values, err := imageValues(archive)
		if err != nil {
			t.Fatal(err)
		}
		seen[values["kubeletPlugin.podAnnotations.demo-image"]] = true
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("marks of two images: %v", seen)
	}
}

func TestPending(t *testing.T) {
	if got := pending("Building", 10*time.Second, ""); got != "Building: not yet, 10s so far" {
		t.Errorf("nothing said: %q", got)
	}
	if got := pending("Building", 20*time.Second, "etcd"); got != "Building: not yet, 20s so far: etcd" {
		t.Errorf("something said: %q", got)
	}
}

func TestHints(t *testing.T) {
	got := hints("/kube/config", "/programs")
	for _, words := range []string{
		"KUBECONFIG=/kube/config PATH=/programs:$PATH\n",
		"sed 's#ubuntu:24.04#localhost/workload:1#' demo/specs/one-gpu.yaml | kubectl apply -f - ",
		"kubectl wait --for=condition=Ready pod/one-gpu",
	} {
		if !strings.Contains(got, words) {
			t.Errorf("%q is not in:%s", words, got)
		}
	}
}

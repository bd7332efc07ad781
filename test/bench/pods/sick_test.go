package pods

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/gpusim"
)

const ms = time.Millisecond

func podWith(health corev1.ResourceHealthStatus) watch.Event {
	status := corev1.ContainerStatus{}
	if health != "" {
		status.AllocatedResourcesStatus = []corev1.ResourceStatus{{Name: "claim:gpu", Resources: []corev1.ResourceHealth{{Health: health}}}}
	}
	return watch.Event{Object: &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status}}}}
}

func TestPodSays(t *testing.T) {
	for health, want := range map[corev1.ResourceHealthStatus][2]bool{
		corev1.ResourceHealthStatusUnhealthy: {true, false}, corev1.ResourceHealthStatusHealthy: {false, true},
		corev1.ResourceHealthStatusUnknown: {false, false}, "": {false, false},
	} {
		e := podWith(health)
		if ill, well := podSays(e, true), podSays(e, false); ill != want[0] || well != want[1] {
			t.Errorf("%q: ill %t, well %t", health, ill, well)
		}
	}
	if podSays(watch.Event{Object: &corev1.Pod{}}, false) || podSays(watch.Event{}, true) {
		t.Error("what is no answer says something")
	}
}

func TestSliceSays(t *testing.T) {
	slice := &resourceapi.ResourceSlice{}
	slice.Spec.Devices = []resourceapi.Device{
		{Name: "well"},
		{Name: "noted", Taints: []resourceapi.DeviceTaint{{Effect: resourceapi.DeviceTaintEffectNone}}},
		{Name: "ill", Taints: []resourceapi.DeviceTaint{{Effect: resourceapi.DeviceTaintEffectNone}, {Effect: resourceapi.DeviceTaintEffectNoSchedule}}},
	}
	e := watch.Event{Object: slice}
	for name, want := range map[string][2]bool{"well": {false, true}, "noted": {false, true}, "ill": {true, false}, "missing": {false, false}} {
		if ill, well := sliceSays(e, name, true), sliceSays(e, name, false); ill != want[0] || well != want[1] {
			t.Errorf("%s: ill %t, well %t", name, ill, well)
		}
	}
	if sliceSays(watch.Event{}, "well", false) {
		t.Error("what is no answer says something")
	}
}

func TestNumberOf(t *testing.T) {
	machine := gpusim.New(t, "t4-4")
	for i, g := range machine.Spec().GPUs {
		name := "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(g.PCI.String())
		if got := numberOf(machine, name); got != i {
			t.Errorf("%s is GPU %d, not %d", name, got, i)
		}
	}
	if got := numberOf(machine, "gpu-ffff-00-00-0"); got != -1 {
		t.Errorf("a device of another node is GPU %d", got)
	}
}

func TestReports(t *testing.T) {
	s := Sick{Tainted: sample.Series{10 * ms, 20 * ms, 30 * ms}, Told: sample.Series{5 * ms}, Offered: sample.Series{100 * ms}, Well: sample.Series{200 * ms}}
	p := Starts{Took: map[string]sample.Series{withoutClaim: {1000 * ms}, withClaim: {1500 * ms}}}
	for text, words := range map[string][]string{s.String(): {"20.00", "30.00", "5.00", "100.00", "200.00"}, p.String(): {"1.50 ×", "1 pods of each kind"}} {
		for _, want := range words {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}

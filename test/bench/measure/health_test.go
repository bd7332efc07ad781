package measure

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/bench/sample"
)

func TestAvoided(t *testing.T) {
	slice := &resourceapi.ResourceSlice{}
	slice.Spec.Devices = []resourceapi.Device{
		{Name: "well"},
		{Name: "noted", Taints: []resourceapi.DeviceTaint{{Effect: resourceapi.DeviceTaintEffectNone}}},
		{Name: "ill", Taints: []resourceapi.DeviceTaint{{Effect: resourceapi.DeviceTaintEffectNone}, {Effect: resourceapi.DeviceTaintEffectNoSchedule}}},
	}
	for name, want := range map[string][2]bool{"well": {false, true}, "noted": {false, true}, "ill": {true, true}, "missing": {false, false}} {
		if has, found := avoided(slice, name); has != want[0] || found != want[1] {
			t.Errorf("%s: %t, %t", name, has, found)
		}
	}
}

func TestHealthReport(t *testing.T) {
	h := Health{
		Tainted: sample.Series{10 * ms, 20 * ms, 30 * ms}, Told: sample.Series{5 * ms}, Offered: sample.Series{100 * ms},
		BurstWrites: []int{2, 1},
	}
	text := h.String()
	for _, want := range []string{"20.00", "30.00", "5.00", "100.00", "at once: 2, 1."} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

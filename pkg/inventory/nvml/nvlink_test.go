package nvml_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a link ends at is asked once, and again when the link was down or the answer was an error.
func TestLinkEndsAreAskedOnce(t *testing.T) {
	m := newMachine(t, "two-islands")
	const gpu = 2
	asked, err := m.CountCalls(gpu, "nvmlDeviceGetNvLinkRemoteDeviceType")
	do(t, err)
	questions := func() int64 {
		n, err := asked()
		do(t, err)
		return n
	}
	before := m.scan(t).GPUs[gpu].NVLink
	first := questions()
	if first == 0 || first != int64(len(before.Links)) {
		t.Fatalf("%d questions about %d links", first, len(before.Links))
	}
	if diff := cmp.Diff(before, m.scan(t).GPUs[gpu].NVLink); diff != "" || questions() != first {
		t.Errorf("a second look asked %d times more (-before +after):\n%s", questions()-first, diff)
	}
	do(t, m.SetLink(gpu, 1, false))
	if l := m.scan(t).GPUs[gpu].NVLink.Links; l[1].Active || !l[0].Active {
		t.Errorf("with one link down: %+v", l)
	}
	do(t, m.SetLink(gpu, 1, true))
	if diff := cmp.Diff(before, m.scan(t).GPUs[gpu].NVLink); diff != "" || questions() != first+1 {
		t.Errorf("a link that returned was asked %d times (-before +after):\n%s", questions()-first, diff)
	}
}

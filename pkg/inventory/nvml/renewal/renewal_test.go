package renewal

import (
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/pci"
)

func TestASessionIsRenewedEverMoreRarely(t *testing.T) {
	broken, late := pci.Address{Bus: 1}, pci.Address{Bus: 2}
	one, both := []pci.Address{broken}, []pci.Address{broken, late}
	var r Policy
	r.Noted(one, one)
	for i, step := range []struct {
		unserved, onBus []pci.Address
		age             time.Duration
		want            bool
	}{
		{nil, one, time.Hour, false},
		{one, one, firstRenewal - 1, false},
		{one, one, firstRenewal, true},
		{one, one, firstRenewal, false},
		{one, one, 2 * firstRenewal, true},
		{one, one, 3 * firstRenewal, false},
		// A GPU that came is worth a new session at once, and then as often as at first.
		{both, both, 0, true},
		{both, both, 0, false},
		{both, both, firstRenewal, true},
		{both, both, firstRenewal, false},
		// All is well for a while.
		{nil, both, 0, false},
		{one, both, firstRenewal - 1, false},
		{one, both, firstRenewal, true},
	} {
		if got := r.Due(step.unserved, step.age); got != step.want {
			t.Errorf("step %d: due is %v, want %v", i, got, step.want)
		}
		r.Noted(step.unserved, step.onBus)
	}
	for range 20 {
		r.Due(one, lastRenewal)
	}
	if r.wait != lastRenewal {
		t.Errorf("waits for %v, want at most %v", r.wait, lastRenewal)
	}
}

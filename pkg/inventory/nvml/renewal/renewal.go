// Package renewal decides when a session with NVML is opened anew. It is for package nvml; it must
// not know NVML.
package renewal

import (
	"slices"
	"time"

	"github.com/gpu-dra/driver/pkg/pci"
)

// How long a session must have lasted before GPUs that it does not serve are worth a new one:
// at first, and at most.
const (
	firstRenewal = 30 * time.Second
	lastRenewal  = 10 * time.Minute
)

// Policy decides when a session is opened anew for GPUs that the bus shows bound to the driver
// and NVML does not serve. NVML enumerates once a session, so a GPU that came later needs a new
// one; one that is broken does not get better by it, and opening may be slow because of it.
// The zero value is ready to use.
type Policy struct {
	wait time.Duration
	// onBus are the GPUs that the bus showed at the last reading.
	onBus []pci.Address
}

// Due tells whether a session of that age should be renewed.
func (r *Policy) Due(unserved []pci.Address, age time.Duration) bool {
	if len(unserved) == 0 {
		return false
	}
	if slices.ContainsFunc(unserved, func(a pci.Address) bool { return !slices.Contains(r.onBus, a) }) {
		r.wait = 0
		return true
	}
	if age < max(r.wait, firstRenewal) {
		return false
	}
	r.wait = min(2*max(r.wait, firstRenewal), lastRenewal)
	return true
}

// Noted remembers what a reading found.
func (r *Policy) Noted(unserved, onBus []pci.Address) {
	r.onBus = slices.Clone(onBus)
	if len(unserved) == 0 {
		r.wait = 0
	}
}

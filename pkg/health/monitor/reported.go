package monitor

import (
	"context"

	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Reported takes in an error that another source than the GPU driver's library told of; instance is
// -1 for none. One of a GPU that is not known is dropped.
func (m *Monitor) Reported(ctx context.Context, at pci.Address, xid, instance int) {
	m.mu.Lock()
	known, ok := m.known[at]
	m.mu.Unlock()
	if ok {
		m.event(ctx, vitals.Event{GPU: known.id(), XID: xid, Instance: instance})
	}
}

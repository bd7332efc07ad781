package gpusim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// MemoryHealth is what a board counts of its memory since its last reset.
type MemoryHealth struct {
	// RemapPending and RemapFailed are of boards that replace rows.
	RemapPending, RemapFailed bool
	// RetirementPending is of boards that retire pages.
	RetirementPending bool
	// Corrected and Uncorrected are ECC errors.
	Corrected, Uncorrected uint64
}

// SetMemoryHealth sets the state of a GPU's memory.
func (n *Node) SetMemoryHealth(number int, h MemoryHealth) error {
	flag := func(to *uint32, value bool) {
		bit := uint32(0)
		if value {
			bit = 1
		}
		atomic.StoreUint32(to, bit)
	}
	return n.gpu(number, func(g *simstate.GPU) error {
		flag(&g.Health.RemapPending, h.RemapPending)
		flag(&g.Health.RemapFailed, h.RemapFailed)
		flag(&g.Health.RetiredPagesPending, h.RetirementPending)
		atomic.StoreUint64(&g.Health.ECCCorrectedVolatile, h.Corrected)
		atomic.StoreUint64(&g.Health.ECCUncorrectedVolatile, h.Uncorrected)
		return nil
	})
}

// SetLinkErrors sets how many replays an NVLink of a GPU has counted.
func (n *Node) SetLinkErrors(number, link int, errors uint64) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		if link < 0 || link >= int(g.LinkCount) {
			return fmt.Errorf("GPU %d has no NVLink %d: it has %d", number, link, g.LinkCount)
		}
		atomic.StoreUint64(&g.Links[link].ReplayErrors, errors)
		return nil
	})
}

// Events that are no XIDs, as nvml.h numbers them.
const (
	EventGPUUnavailable = 0x4000
	EventRecoveryAction = 0x8000
)

// InjectEvent reports an event of a type without data: every event set that registered for it wakes.
func (n *Node) InjectEvent(number int, kind uint64) error {
	return n.update(func(s *simstate.Node) error {
		if number < 0 || number >= int(s.GPUCount) {
			return fmt.Errorf("%w: %d", ErrNoGPU, number)
		}
		return s.Publish(simstate.Event{
			Type: kind, GPU: uint32(number), TimestampUsec: uint64(time.Now().UnixMicro()),
			GPUInstanceID: simstate.NoInstance, ComputeInstanceID: simstate.NoInstance,
		})
	})
}

// KernelLog is the file that stands for /dev/kmsg: the driver writes each XID into it.
func (n *Node) KernelLog() string { return filepath.Join(n.layout.Dir, "kmsg") }

// LogXID writes an XID into the kernel log alone, as for an error that NVML tells nobody.
func (n *Node) LogXID(number int, xid XID) error {
	node := n.Spec()
	if number < 0 || number >= len(node.GPUs) {
		return fmt.Errorf("%w: %d", ErrNoGPU, number)
	}
	at := node.GPUs[number].PCI
	place := fmt.Sprintf("PCI:%04x:%02x:%02x", at.Domain, at.Bus, at.Device)
	if xid.GPUInstance != nil {
		place += fmt.Sprintf(" GPU-I:%02d", *xid.GPUInstance)
	}
	return n.log(fmt.Sprintf("NVRM: Xid (%s): %d, pid='<unknown>', name=<unknown>, simulated", place, xid.Code))
}

// log writes a record of the kernel's, as /dev/kmsg gives it: priority, sequence number and
// microseconds since the boot, which here are those of the clock.
func (n *Node) log(message string) error {
	f, err := os.OpenFile(n.KernelLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	now := time.Now().UnixMicro()
	_, err = fmt.Fprintf(f, "3,%d,%d,-;%s\n SUBSYSTEM=pci\n", now, now, message)
	return errors.Join(err, f.Close())
}

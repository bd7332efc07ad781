package gpusim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// ErrNoGPU says that a GPU of that number does not exist.
var ErrNoGPU = errors.New("no such GPU")

// ErrTooManyFaults says that no slot for another call fault is free.
var ErrTooManyFaults = errors.New("too many call faults are armed")

// AnyGPU makes a call fault apply to every GPU and to calls without a device.
const AnyGPU = -1

// AnyFunction makes a call fault apply to every call.
const AnyFunction = "*"

// Forever makes a call fault stay until it is cleared.
const Forever = -1

// CallFault makes an NVML call fail or slow.
type CallFault struct {
	// Function is the C name; a name without its _v2 means every version, and AnyFunction all.
	Function string
	// GPU is a number in PCI order or AnyGPU.
	GPU int
	// Code is the nvmlReturn_t to give; 0 only delays.
	Code uint32
	// After is the number of calls that pass before.
	After uint32
	// Count is the number of calls that are hit, or Forever. Zero means one.
	Count int64
	// Delay is slept before the answer.
	Delay time.Duration
	// Hang makes the call sleep until the faults are cleared.
	Hang bool
}

// FabricChange sets the fabric registration of a GPU. Nil fields stay as they are.
type FabricChange struct {
	// State is notSupported, notStarted, inProgress or completed.
	State      string
	Status     *uint32
	Clique     *uint32
	HealthMask *uint32
}

// gpu changes the state of one GPU, by its number in PCI order.
func (n *Node) gpu(number int, change func(*simstate.GPU) error) error {
	return n.update(func(s *simstate.Node) error {
		if number < 0 || number >= int(s.GPUCount) {
			return fmt.Errorf("%w: %d; the node has %d", ErrNoGPU, number, s.GPUCount)
		}
		return change(&s.GPUs[number])
	})
}

// LoseGPU makes a GPU fall off the bus: its calls answer GPU_IS_LOST.
func (n *Node) LoseGPU(number int) error { return n.setLost(number, 1) }

// HealGPU ends LoseGPU, as a reset would.
func (n *Node) HealGPU(number int) error { return n.setLost(number, 0) }

func (n *Node) setLost(number int, value uint32) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		atomic.StoreUint32(&g.Lost, value)
		return nil
	})
}

// RemoveGPU takes a board out of the machine: device node, proc and sysfs entries go.
// Sessions that had it see GPU_IS_LOST, new ones do not see it.
func (n *Node) RemoveGPU(number int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.setAbsent(number, 1), n.withGPU(number, n.builder().RemoveGPU))
}

// AddGPU puts a board back that RemoveGPU took out.
func (n *Node) AddGPU(number int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.withGPU(number, n.builder().AddGPU), n.setAbsent(number, 0))
}

func (n *Node) setAbsent(number int, value uint32) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		atomic.StoreUint32(&g.Absent, value)
		// Instances do not outlive the board's power.
		for id := range g.MIG.Instances {
			g.MIG.Instances[id].End()
		}
		return nil
	})
}

func (n *Node) withGPU(number int, do func(*nodefile.ResolvedGPU) error) error {
	if number < 0 || number >= len(n.node.GPUs) {
		return fmt.Errorf("%w: %d", ErrNoGPU, number)
	}
	return do(&n.node.GPUs[number])
}

// FailCall arms a call fault.
func (n *Node) FailCall(f CallFault) error {
	if f.Function == "" {
		return errors.New("a call fault needs the name of a function such as nvmlDeviceGetMemoryInfo")
	}
	return n.update(func(s *simstate.Node) error {
		_, err := armFree(s, f)
		return err
	})
}

// CountCalls counts, from now on until the faults are cleared, the calls of a function about a GPU,
// by its number in PCI order; AnyFunction counts all. They go on as if nobody counted.
func (n *Node) CountCalls(number int, function string) (count func() (int64, error), err error) {
	const most = 1 << 40
	slot := 0
	err = n.update(func(s *simstate.Node) (err error) {
		slot, err = armFree(s, CallFault{Function: function, GPU: number, Count: most})
		return err
	})
	return func() (int64, error) {
		s, err := n.State()
		if err != nil {
			return 0, err
		}
		return most - s.Faults[slot].Remaining, nil
	}, err
}

// armFree arms a fault in a slot that is free, and tells which.
func armFree(s *simstate.Node, f CallFault) (slot int, err error) {
	for i := range s.Faults {
		slot := &s.Faults[i]
		if slot.Armed != 0 && slot.Remaining != 0 {
			continue
		}
		if err := armFault(slot, f); err != nil {
			return 0, err
		}
		countFaults(s)
		return i, nil
	}
	return 0, fmt.Errorf("%w: %d", ErrTooManyFaults, simstate.MaxFaults)
}

func armFault(slot *simstate.Fault, f CallFault) error {
	atomic.StoreUint32(&slot.Armed, 0)
	if err := simstate.SetString(slot.Function[:], f.Function); err != nil {
		return fmt.Errorf("function %q: %w", f.Function, err)
	}
	slot.GPU, slot.Code, slot.After = int32(f.GPU), f.Code, f.After
	slot.DelayUsec = uint64(f.Delay.Microseconds())
	if f.Hang {
		slot.DelayUsec = ^uint64(0)
	}
	slot.Remaining = f.Count
	if f.Count == 0 {
		slot.Remaining = 1
	}
	atomic.StoreUint32(&slot.Armed, 1)
	return nil
}

func countFaults(s *simstate.Node) {
	armed := uint32(0)
	for i := range s.Faults {
		armed += s.Faults[i].Armed
	}
	atomic.StoreUint32(&s.FaultCount, armed)
	atomic.AddUint32(&s.FaultEpoch, 1)
}

// ArmedFaults lists the call faults that are armed, in the order in which FailCall came on a node
// without any: After and Count are what is left of them.
func (n *Node) ArmedFaults() ([]CallFault, error) {
	var list []CallFault
	err := n.look(func(s *simstate.Node) error {
		for i := range s.Faults {
			if f := &s.Faults[i]; atomic.LoadUint32(&f.Armed) != 0 {
				list = append(list, CallFault{
					Function: simstate.String(f.Function[:]), GPU: int(f.GPU), Code: f.Code,
					After: atomic.LoadUint32(&f.After), Count: atomic.LoadInt64(&f.Remaining), Hang: f.DelayUsec == ^uint64(0),
				})
			}
		}
		return nil
	})
	return list, err
}

// ClearFaults ends all call faults and wakes calls that hang in one.
func (n *Node) ClearFaults() error {
	return n.update(func(s *simstate.Node) error {
		for i := range s.Faults {
			atomic.StoreUint32(&s.Faults[i].Armed, 0)
		}
		countFaults(s)
		return nil
	})
}

// SetLatency delays every call.
func (n *Node) SetLatency(d time.Duration) error {
	return n.update(func(s *simstate.Node) error {
		atomic.StoreUint32(&s.CallLatencyUsec, uint32(d.Microseconds()))
		return nil
	})
}

// SetLink brings an NVLink of a GPU up or down; for a direct link the far end follows.
func (n *Node) SetLink(number, link int, up bool) error {
	return n.update(func(s *simstate.Node) error {
		if number < 0 || number >= int(s.GPUCount) {
			return fmt.Errorf("%w: %d", ErrNoGPU, number)
		}
		gpu := &s.GPUs[number]
		if link < 0 || link >= int(gpu.LinkCount) {
			return fmt.Errorf("GPU %d has no NVLink %d: it has %d", number, link, gpu.LinkCount)
		}
		active := uint32(0)
		if up {
			active = 1
		}
		if far := farEnd(s, number, link); far != nil {
			atomic.StoreUint32(&far.Active, active)
		}
		atomic.StoreUint32(&gpu.Links[link].Active, active)
		return nil
	})
}

// SetAllLinks brings every NVLink of a GPU up or down.
func (n *Node) SetAllLinks(number int, up bool) error {
	state, err := n.State()
	if err != nil {
		return err
	}
	if number < 0 || number >= int(state.GPUCount) {
		return fmt.Errorf("%w: %d", ErrNoGPU, number)
	}
	for link := range int(state.GPUs[number].LinkCount) {
		if err := n.SetLink(number, link, up); err != nil {
			return err
		}
	}
	return nil
}

// farEnd finds the other end of a direct link: the n-th link of the peer back to this GPU.
func farEnd(s *simstate.Node, number, link int) *simstate.Link {
	mine := &s.GPUs[number].Links[link]
	if mine.PeerGPU < 0 {
		return nil
	}
	before := 0
	for i := range link {
		if s.GPUs[number].Links[i].PeerGPU == mine.PeerGPU {
			before++
		}
	}
	peer := &s.GPUs[mine.PeerGPU]
	for i := range peer.LinkCount {
		if peer.Links[i].PeerGPU != int32(number) {
			continue
		}
		if before == 0 {
			return &peer.Links[i]
		}
		before--
	}
	return nil
}

// SetFabric changes the fabric registration of a GPU.
func (n *Node) SetFabric(number int, change FabricChange) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		if g.Fabric.Supported == 0 {
			return fmt.Errorf("GPU %d registers with no fabric", number)
		}
		if change.State != "" {
			state, ok := nodefile.FabricStates()[change.State]
			if !ok {
				return fmt.Errorf("fabric state %q: must be notSupported, notStarted, inProgress or completed", change.State)
			}
			atomic.StoreUint32(&g.Fabric.State, state)
		}
		for field, value := range map[*uint32]*uint32{&g.Fabric.Status: change.Status, &g.Fabric.CliqueID: change.Clique, &g.Fabric.HealthMask: change.HealthMask} {
			if value != nil {
				atomic.StoreUint32(field, *value)
			}
		}
		return nil
	})
}

// SetUsedMemory sets the bytes in use on a GPU.
func (n *Node) SetUsedMemory(number int, bytes uint64) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		atomic.StoreUint64(&g.MemoryUsed, bytes)
		return nil
	})
}

// SetRecoveryAction sets what field 230 answers for a GPU.
func (n *Node) SetRecoveryAction(number int, action uint32) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		atomic.StoreUint32(&g.RecoveryAction, action)
		return nil
	})
}

// XID is an error that the driver reports for a GPU.
type XID struct {
	Code uint64
	// GPUInstance and ComputeInstance are nil unless the error is of that instance alone.
	GPUInstance, ComputeInstance *uint32
}

// InjectXID reports an XID: it is in the kernel log, and every event set of every process that
// registered for it wakes.
func (n *Node) InjectXID(number int, xid XID) error {
	if err := n.LogXID(number, xid); err != nil {
		return err
	}
	return n.update(func(s *simstate.Node) error {
		if number < 0 || number >= int(s.GPUCount) {
			return fmt.Errorf("%w: %d", ErrNoGPU, number)
		}
		event := simstate.Event{
			Type: eventXID, Data: xid.Code, GPU: uint32(number), TimestampUsec: uint64(time.Now().UnixMicro()),
			GPUInstanceID: simstate.NoInstance, ComputeInstanceID: simstate.NoInstance,
		}
		if xid.GPUInstance != nil {
			event.GPUInstanceID = *xid.GPUInstance
		}
		if xid.ComputeInstance != nil {
			event.ComputeInstanceID = *xid.ComputeInstance
		}
		return s.Publish(event)
	})
}

// eventXID is nvmlEventTypeXidCriticalError.
const eventXID = 0x8

// absentDir keeps what RemoveDriver took away.
const absentDir = "absent"

// driverParts are the entries that come and go with an installed driver.
func driverParts() []string {
	return []string{"driver", "driver/proc/driver", "sys/module/nvidia", "sys/bus/pci/drivers/nvidia"}
}

// RemoveDriver uninstalls the driver: until RestoreDriver the driver root holds only what
// the kernel has without it (proc), and no board is bound to a driver.
func (n *Node) RemoveDriver() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.builder().Unbind(), n.moveDriver(n.layout.Dir, filepath.Join(n.layout.Dir, absentDir)))
}

// RestoreDriver installs the driver again.
func (n *Node) RestoreDriver() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.moveDriver(filepath.Join(n.layout.Dir, absentDir), n.layout.Dir), n.builder().Bind())
}

// moveDriver moves entries, not the directories that hold them: those may be mounted somewhere.
func (n *Node) moveDriver(from, to string) error {
	for _, part := range driverParts() {
		entries, err := os.ReadDir(filepath.Join(from, part))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, part), 0o755); err != nil {
			return err
		}
		for _, entry := range entries {
			if part == "driver" && entry.Name() == "proc" {
				continue
			}
			if err := os.Rename(filepath.Join(from, part, entry.Name()), filepath.Join(to, part, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reboot forgets what a machine forgets (modes, faults, MIG, lost and removed GPUs), draws a
// new boot id, and hands out the minor numbers anew, permuted by seed; seed 0 keeps them.
// MIG as the node file has it is made again, as a service at boot would.
func (n *Node) Reboot(seed uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if seed != 0 {
		minors := make([]uint32, len(n.node.GPUs))
		for i := range n.node.GPUs {
			minors[i] = n.node.GPUs[i].Minor
		}
		random := rand.New(rand.NewPCG(seed, seed))
		random.Shuffle(len(minors), func(i, j int) { minors[i], minors[j] = minors[j], minors[i] })
		for i := range n.node.GPUs {
			n.setMinor(&n.node.GPUs[i], minors[i])
		}
	}
	return errors.Join(n.builder().Boot(), n.writeState(), n.save(), n.makeInstances())
}

// setMinor changes the minor of a GPU in the resolved node and in the node file.
func (n *Node) setMinor(gpu *nodefile.ResolvedGPU, minor uint32) {
	gpu.Minor = minor
	i := slices.IndexFunc(n.file.GPUs, func(g nodefile.GPU) bool { return g.PCI == gpu.PCI.String() })
	n.file.GPUs[i].Minor = &minor
}

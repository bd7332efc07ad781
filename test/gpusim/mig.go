package gpusim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// ErrMIG says that the node's nvidia-smi refused a change of MIG; the error holds its words.
var ErrMIG = errors.New("nvidia-smi refused")

// ErrTooManyClients says that a GPU has no room for more clients.
var ErrTooManyClients = errors.New("too many clients")

// AnyStart lets the driver choose where an instance lies.
const AnyStart = -1

// MIGInstance is one live GPU instance, with its compute instances.
type MIGInstance struct {
	// ID is the GPU instance's.
	ID int `json:"id"`
	// Profile is its name, such as 1g.10gb.
	Profile string `json:"profile"`
	// Start and Size are memory units.
	Start   int               `json:"start"`
	Size    int               `json:"size"`
	Compute []ComputeInstance `json:"computeInstances,omitempty"`
}

// ComputeInstance is one live compute instance, which is a MIG device.
type ComputeInstance struct {
	ID int `json:"id"`
	// Start and Size are compute slices of its GPU instance.
	Start int    `json:"start"`
	Size  int    `json:"size"`
	UUID  string `json:"uuid"`
	// Clients is the number of processes on it.
	Clients int `json:"clients"`
}

// tool runs the node's nvidia-smi on one GPU, as an administrator would. Faults that were
// injected do not hit it.
func (n *Node) tool(number int, command string, args ...string) (string, error) {
	uuids := n.UUIDs()
	if number < 0 || number >= len(uuids) {
		return "", fmt.Errorf("%w: %d; the node has %d", ErrNoGPU, number, len(uuids))
	}
	return n.smi(append(strings.Fields(command), append([]string{"-i", uuids[number]}, args...)...)...)
}

func (n *Node) smi(args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), n.SMI(), args...)
	cmd.Env = append(os.Environ(), "GPUSIM_IMMUNE=1", "GPUSIM_ROOT="+n.DriverRoot())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: nvidia-smi %s: %w: %s", ErrMIG, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// SetMIGMode switches MIG on or off; where that needs a reset, the GPU is reset.
func (n *Node) SetMIGMode(number int, on bool) error {
	if err := n.RequestMIGMode(number, on); err != nil {
		return err
	}
	state, err := n.State()
	if err != nil || state.GPUs[number].MIG.CurrentMode == state.GPUs[number].MIG.PendingMode {
		return err
	}
	return n.ResetGPU(number)
}

// RequestMIGMode switches MIG on or off; where that needs a reset or an idle GPU, it stays pending.
func (n *Node) RequestMIGMode(number int, on bool) error {
	mode := "0"
	if on {
		mode = "1"
	}
	_, err := n.tool(number, "-mig "+mode)
	return err
}

// ResetGPU resets a GPU that has no clients: pending modes take effect, MIG instances end.
func (n *Node) ResetGPU(number int) error {
	_, err := n.tool(number, "--gpu-reset")
	return err
}

// CreateMIG makes a GPU instance of a profile, such as 1g.10gb, with one compute instance
// that fills it, as another tool would; start is a memory unit or AnyStart.
func (n *Node) CreateMIG(number int, profile string, start int) (MIGInstance, error) {
	if start != AnyStart {
		profile = fmt.Sprintf("%s:%d", profile, start)
	}
	out, err := n.tool(number, "mig", "-cgi", profile, "-C")
	if err != nil {
		return MIGInstance{}, err
	}
	match := regexp.MustCompile(`GPU instance ID +(\d+)`).FindStringSubmatch(out)
	if match == nil {
		return MIGInstance{}, fmt.Errorf("%w: no instance in %q", ErrMIG, out)
	}
	id, err := strconv.Atoi(match[1])
	if err != nil {
		return MIGInstance{}, err
	}
	instances, err := n.MIGInstances(number)
	for _, instance := range instances {
		if instance.ID == id {
			return instance, err
		}
	}
	return MIGInstance{}, errors.Join(err, fmt.Errorf("GPU instance %d of GPU %d went away at once", id, number))
}

// DestroyMIG ends a GPU instance and its compute instances, as another tool would.
func (n *Node) DestroyMIG(number, gpuInstance int) error {
	id := strconv.Itoa(gpuInstance)
	instances, err := n.MIGInstances(number)
	if err != nil {
		return err
	}
	for _, instance := range instances {
		if instance.ID == gpuInstance && len(instance.Compute) > 0 {
			if _, err := n.tool(number, "mig", "-dci", "-gi", id); err != nil {
				return err
			}
		}
	}
	_, err = n.tool(number, "mig", "-dgi", "-gi", id)
	return err
}

// MIGInstances lists the live instances of a GPU by their ids.
func (n *Node) MIGInstances(number int) ([]MIGInstance, error) {
	var list []MIGInstance
	err := n.look(func(s *simstate.Node) error {
		if number < 0 || number >= int(s.GPUCount) {
			return fmt.Errorf("%w: %d; the node has %d", ErrNoGPU, number, s.GPUCount)
		}
		list = Instances(&s.GPUs[number])
		return nil
	})
	return list, err
}

// MIGMode tells whether the MIG mode of a GPU is on.
func (n *Node) MIGMode(number int) (on bool, err error) {
	err = n.gpu(number, func(g *simstate.GPU) error {
		on = g.MIG.CurrentMode != 0
		return nil
	})
	return on, err
}

// Instances lists the live instances of a GPU of a state.
func Instances(gpu *simstate.GPU) []MIGInstance {
	var out []MIGInstance
	for id := range gpu.MIG.Instances {
		gi := &gpu.MIG.Instances[id]
		if gi.Used == 0 {
			continue
		}
		name := simstate.String(gpu.MIG.Profiles[gi.ProfileIndex].Name[:])
		instance := MIGInstance{ID: id, Profile: strings.TrimPrefix(name, migPrefix), Start: int(gi.Start), Size: int(gi.Size)}
		for c := range gi.ComputeInstances {
			if ci := &gi.ComputeInstances[c]; ci.Used != 0 {
				instance.Compute = append(instance.Compute, ComputeInstance{
					ID: c, Start: int(ci.Start), Size: int(ci.Size), UUID: simstate.String(ci.UUID[:]), Clients: clients(gpu, uint32(id), uint32(c)),
				})
			}
		}
		out = append(out, instance)
	}
	return out
}

func clients(gpu *simstate.GPU, gi, ci uint32) int {
	count := 0
	for _, p := range gpu.Processes[:gpu.ProcessCount] {
		if p.GPUInstanceID == gi && p.ComputeInstanceID == ci {
			count++
		}
	}
	return count
}

// SetClients makes count processes run on a whole GPU, in place of those it had.
func (n *Node) SetClients(number, count int) error {
	return n.setClients(number, simstate.NoInstance, simstate.NoInstance, count)
}

// SetMIGClients makes count processes run on a compute instance, in place of those it had.
func (n *Node) SetMIGClients(number, gpuInstance, computeInstance, count int) error {
	return n.setClients(number, uint32(gpuInstance), uint32(computeInstance), count)
}

func (n *Node) setClients(number int, gi, ci uint32, count int) error {
	return n.gpu(number, func(g *simstate.GPU) error {
		var kept []simstate.Process
		for _, p := range g.Processes[:g.ProcessCount] {
			if p.GPUInstanceID != gi || p.ComputeInstanceID != ci {
				kept = append(kept, p)
			}
		}
		for i := range count {
			kept = append(kept, simstate.Process{PID: uint32(40000 + 100*len(kept) + i), GPUInstanceID: gi, ComputeInstanceID: ci, UsedMemory: 256 * mib})
		}
		if len(kept) > simstate.MaxProcesses {
			return fmt.Errorf("%w: GPU %d has room for %d", ErrTooManyClients, number, simstate.MaxProcesses)
		}
		// Readers take no lock: they see no entry that is half written.
		atomic.StoreUint32(&g.ProcessCount, 0)
		copy(g.Processes[:], kept)
		atomic.StoreUint32(&g.ProcessCount, uint32(len(kept)))
		return nil
	})
}

// makeInstances makes the instances that the node file has from the start.
func (n *Node) makeInstances() error {
	for number := range n.node.GPUs {
		gpu := &n.node.GPUs[number]
		if gpu.Lost || len(gpu.MIG.Instances) == 0 {
			continue
		}
		words := make([]string, len(gpu.MIG.Instances))
		for i, instance := range gpu.MIG.Instances {
			words[i] = instance.Profile
			if instance.Start != nil {
				words[i] = fmt.Sprintf("%s:%d", instance.Profile, *instance.Start)
			}
		}
		if _, err := n.smi("mig", "-i", gpu.UUID, "-cgi", strings.Join(words, ","), "-C"); err != nil {
			return err
		}
	}
	return nil
}

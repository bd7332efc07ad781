package memlimit

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Kind is the kind of the step. It is in records: never rename it.
const Kind = "memory-limit"

// stepParams are what the step has to know. They are in records: never rename a member.
type stepParams struct {
	PCI     pci.Address `json:"pci"`
	GPUUUID string      `json:"gpuUUID"`
	Device  string      `json:"device"`
	Bytes   uint64      `json:"bytes"`
	// Namespace and Name are the claim's, for messages to others.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Share     types.UID `json:"share"`
}

func (p stepParams) gpu() inventory.GPUID { return inventory.GPUID{PCI: p.PCI, UUID: p.GPUUUID} }

// file is the name of the share's note among those of its GPU.
func (p stepParams) file() string { return string(p.UID) + "_" + string(p.Share) }

// stepOf finds the step among those of a device; nil for none.
func stepOf(steps []journal.Step) (*stepParams, error) {
	i := slices.IndexFunc(steps, func(s journal.Step) bool { return s.Kind == Kind })
	if i < 0 {
		return nil, nil
	}
	return decode(steps[i].Params)
}

func decode(params jsontext.Value) (*stepParams, error) {
	var p stepParams
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, fmt.Errorf("parameters of %s in the record: %w", Kind, err)
	}
	return &p, nil
}

// hookSeconds bounds the hook in the runtime; the hook gives up on its own before.
const hookSeconds = 40

// limitVariable tells a container its limit in MiB, under the name of NVIDIA's container toolkit.
const limitVariable = "NVIDIA_GPU_MEMORY_LIMIT"

// Handler plans the step, and gives containers the hook. It goes into the chain of full GPUs.
type Handler struct {
	// Hook is the program, as the container runtime sees it, Socket where the plugin listens.
	Hook, Socket string
}

// Steps gives one step for a share that the GPU driver is to enforce, and none for others.
func (Handler) Steps(d claims.Device) ([]journal.Step, error) {
	how := device.SharingOf(d.Device)
	if how == nil || how.Enforcement != device.EnforcedByDriver || d.ShareID == nil || d.AdminAccess {
		return nil, nil
	}
	if d.MemoryBytes <= 0 {
		return nil, fmt.Errorf("device %s: the allocation has no part of its memory, so there is nothing that the GPU driver could enforce: ask for capacity memory", d.Device.Name())
	}
	id := d.Device.Identity()
	params, err := json.Marshal(stepParams{
		PCI: id.PCI, GPUUUID: id.GPUUUID, Device: d.Device.Name(), Bytes: uint64(d.MemoryBytes),
		Namespace: d.Claim.Namespace, Name: d.Claim.Name, UID: d.Claim.UID, Share: *d.ShareID,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the parameters of %s: %w", Kind, err)
	}
	return []journal.Step{{Kind: Kind, Params: params}}, nil
}

// Edits gives containers of such a share the hook that asks for the limit.
func (h Handler) Edits(_ claims.Device, steps []journal.Step) (cdi.Edits, error) {
	p, err := stepOf(steps)
	if err != nil || p == nil {
		return cdi.Edits{}, err
	}
	timeout := hookSeconds
	return cdi.Edits{
		Env: []string{fmt.Sprintf("%s=%d", limitVariable, p.Bytes>>20)},
		// In the runtime's own namespaces, when the container has its cgroup and runs nothing yet.
		Hooks: []*specs.Hook{{
			HookName: "createRuntime", Path: h.Hook, Timeout: &timeout,
			Args: []string{"gpu-limit-hook", "--socket=" + h.Socket, "--claim=" + string(p.UID), "--device=" + p.Device, "--share=" + string(p.Share)},
		}},
	}, nil
}

// Executor does and undoes the step. The caller holds the lock of the GPU.
type Executor struct {
	Node  Node
	Notes Notes
}

// Do checks that the driver can limit memory there, so that a claim fails rather than each of its
// containers. The limit is set when a container is created.
func (e Executor) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	p, err := decode(params)
	if err != nil {
		return nil, err
	}
	return nil, e.Node.Check(ctx, p.gpu())
}

// Undo forgets which container had the share. Its limit goes with its cgroup, and must not go
// before: a program that outlives its claim would have all memory, which is others' by then.
func (e Executor) Undo(_ context.Context, params, _ jsontext.Value) error {
	p, err := decode(params)
	if err != nil {
		return err
	}
	return e.Notes.remove(p.PCI.Label(), p.file())
}

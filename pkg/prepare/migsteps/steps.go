package migsteps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/pci"
)

// The kinds of steps. They are in records: never rename one.
const (
	KindMode     = "mig-mode"
	KindInstance = "mig-instance"
	KindOff      = "mig-off"
)

// The GPU driver, as steps need it. Errors wrap those of package inventory.
type (
	// Instances makes and removes instances.
	Instances interface {
		MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
		CreateGPUInstance(ctx context.Context, gpu inventory.GPUID, profile int, at inventory.MIGPlacement) (int, error)
		CreateComputeInstance(ctx context.Context, gpu inventory.GPUID, instance int) (int, error)
		DestroyComputeInstance(ctx context.Context, gpu inventory.GPUID, instance, compute int) error
		DestroyGPUInstance(ctx context.Context, gpu inventory.GPUID, instance int) error
	}
	// Modes switches modes.
	Modes interface {
		MIG(ctx context.Context, gpu inventory.GPUID) (inventory.MIG, error)
		SetMIGMode(ctx context.Context, gpu inventory.GPUID, on bool) error
	}
	// Users knows who uses a GPU.
	Users interface {
		Processes(ctx context.Context, gpu inventory.GPUID) ([]inventory.Process, error)
	}
)

// DefaultPatience is how long a step waits for the end of what uses an instance or a GPU: the
// programs of a pod that was killed go within seconds, and the caller has well under a minute.
const DefaultPatience = 10 * time.Second

// gpuParams name the GPU of a step.
type gpuParams struct {
	PCI     pci.Address `json:"pci"`
	GPUUUID string      `json:"gpuUUID"`
}

func (p gpuParams) gpu() inventory.GPUID { return inventory.GPUID{PCI: p.PCI, UUID: p.GPUUUID} }

// instanceParams name the instance of a step.
type instanceParams struct {
	gpuParams
	Profile int `json:"profile"`
	// ProfileName is for people.
	ProfileName string `json:"profileName"`
	Start       int    `json:"start"`
	Size        int    `json:"size"`
}

func (p instanceParams) instance() ledger.Instance {
	return ledger.Instance{Profile: p.Profile, Start: p.Start, Size: p.Size}
}

// instanceOutput is what the step gave. Ids hold as long as the instance lives.
type instanceOutput struct {
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
	UUID            string `json:"uuid"`
}

// ModeStep is the step that switches a GPU's MIG mode on.
func ModeStep(gpu inventory.GPUID) (journal.Step, error) {
	return step(KindMode, gpuParams{PCI: gpu.PCI, GPUUUID: gpu.UUID})
}

// OffStep is the step that switches it off.
func OffStep(gpu inventory.GPUID) (journal.Step, error) {
	return step(KindOff, gpuParams{PCI: gpu.PCI, GPUUUID: gpu.UUID})
}

// InstanceStep is the step that makes the instance at a place. The name of the profile is for
// people.
func InstanceStep(gpu inventory.GPUID, i ledger.Instance, profileName string) (journal.Step, error) {
	return step(KindInstance, instanceParams{
		gpuParams: gpuParams{PCI: gpu.PCI, GPUUUID: gpu.UUID}, Profile: i.Profile, ProfileName: profileName, Start: i.Start, Size: i.Size,
	})
}

func step(kind string, params any) (journal.Step, error) {
	data, err := json.Marshal(params)
	if err != nil {
		return journal.Step{}, fmt.Errorf("encode the parameters of %s: %w", kind, err)
	}
	return journal.Step{Kind: kind, Params: data}, nil
}

func decode[T any](kind string, params jsontext.Value) (T, error) {
	var p T
	if err := json.Unmarshal(params, &p); err != nil {
		return p, fmt.Errorf("parameters of %s in the record: %w", kind, err)
	}
	return p, nil
}

// gone tells that the board is not there any more, and whatever was done to it gone with it.
func gone(err error) bool {
	return errors.Is(err, inventory.ErrNoSuchGPU) || errors.Is(err, inventory.ErrLost) || errors.Is(err, inventory.ErrNotSupported)
}

// The time between two tries while something is in use.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// untilFree tries until what is tried is not refused as in use, or patience ends.
func untilFree(ctx context.Context, patience time.Duration, try func() error) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := try()
		if err == nil || !errors.Is(err, inventory.ErrInUse) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-limit.Done():
			timer.Stop()
			return err
		}
	}
}

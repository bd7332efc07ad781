package timeslicing

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/klog/v2"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/driverroot/smi"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Setter sets the interval of one GPU; Tool is one. Errors wrap ErrNotSupported, ErrGone or
// ErrNoTool where they are such.
type Setter interface {
	SetTimeSlice(ctx context.Context, gpuUUID string, interval configapi.TimeSlice) error
}

// What a Setter fails with.
var (
	// ErrNotSupported: the GPU has no such setting, so there is nothing to put back either.
	ErrNotSupported = errors.New("the GPU does not support setting the time slice")
	// ErrGone: the GPU is lost or not there.
	ErrGone = smi.ErrGone
	// ErrNoTool: the driver root lacks nvidia-smi or NVML: the driver was removed or is incomplete.
	ErrNoTool = smi.ErrNoTool
)

// DiffersError tells that another claim on the GPU wants another interval.
type DiffersError struct {
	PCI        pci.Address
	Want, Have configapi.TimeSlice
	Holder     claims.Ref
}

func (e *DiffersError) Error() string {
	return fmt.Sprintf("sharing.timeSlicingConfig.interval: %q is asked for, but GPU %s runs with %q for claim %s/%s (UID %s), and a GPU has one interval: "+
		"ask for %q, or wait for that claim's pods to end", e.Want, e.PCI, e.Have, e.Holder.Namespace, e.Holder.Name, e.Holder.UID, e.Have)
}

// Executor does and undoes the step. The caller holds the lock of the GPU.
type Executor struct {
	Setter Setter
	Users  *Users
}

// Do makes the GPU's interval the wished one, unless it is already for another claim. *DiffersError
// where that is refused.
func (e Executor) Do(ctx context.Context, params jsontext.Value) (jsontext.Value, error) {
	p, err := decode(params)
	if err != nil {
		return nil, err
	}
	others, err := e.Users.others(p)
	if err != nil {
		return nil, err
	}
	isSet := false
	for _, other := range others {
		if other.Interval != p.Interval {
			return nil, &DiffersError{
				PCI: p.PCI, Want: p.Interval, Have: other.Interval,
				Holder: claims.Ref{Namespace: other.Namespace, Name: other.Name, UID: other.UID},
			}
		}
		isSet = isSet || other.Boot == e.Users.boot && other.Set
	}
	entry := user{stepParams: p, Boot: e.Users.boot, Set: isSet}
	if err := e.Users.put(entry); err != nil || isSet {
		return nil, err
	}
	err = e.Setter.SetTimeSlice(ctx, p.GPUUUID, p.Interval)
	if errors.Is(err, ErrNotSupported) && p.Interval == configapi.DefaultTimeSlice {
		err = nil // it has the only one that there is
	}
	if err != nil {
		return nil, fmt.Errorf("set the time slice of GPU %s to %s: %w", p.PCI, p.Interval, err)
	}
	entry.Set = true
	return nil, e.Users.put(entry)
}

// Undo forgets the claim and, if it was the last on its GPU, puts the interval back. A GPU without
// such a setting does not hold the claim, nor does one that is gone: its entry stays until the
// interval can be put back, for the reconciler, since a GPU that comes back may have kept it.
func (e Executor) Undo(ctx context.Context, params, _ jsontext.Value) error {
	p, err := decode(params)
	if err != nil {
		return err
	}
	own, err := e.Users.get(p)
	if err != nil || own == nil {
		return err // the step was never begun
	}
	others, err := e.Users.others(p)
	if err != nil {
		return err
	}
	// A reboot has put everything back.
	if own.Boot == e.Users.boot && len(others) == 0 {
		if done, err := e.reset(ctx, p); err != nil || !done {
			return err
		}
	}
	return e.Users.remove(p)
}

// reset tells whether the interval is the default again, or needs not be.
func (e Executor) reset(ctx context.Context, p stepParams) (done bool, err error) {
	err = e.Setter.SetTimeSlice(ctx, p.GPUUUID, configapi.DefaultTimeSlice)
	switch {
	case err == nil, errors.Is(err, ErrNotSupported):
		return true, nil
	case errors.Is(err, ErrGone), errors.Is(err, ErrNoTool):
		klog.FromContext(ctx).Info("The time slice is not put back yet", "gpu", p.PCI, "reason", err.Error())
		return false, nil
	}
	return false, fmt.Errorf("put the time slice of GPU %s back to %s: %w", p.PCI, configapi.DefaultTimeSlice, err)
}

func decode(params jsontext.Value) (stepParams, error) {
	var p stepParams
	if err := json.Unmarshal(params, &p); err != nil {
		return p, fmt.Errorf("parameters of %s in the record: %w", Kind, err)
	}
	return p, nil
}

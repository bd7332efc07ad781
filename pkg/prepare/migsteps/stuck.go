package migsteps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig"
)

// Stuck knows the instances that could not be removed since something uses them.
type Stuck struct {
	// Tell is told of all of them, by place, whenever one is added or goes. It must not block, and
	// not ask Taint.
	Tell func(ctx context.Context, current map[string]string)

	mu      sync.Mutex
	current map[string]string
	places  map[string]device.Identity
}

// Taint keeps new claims from whatever needs the place of a stuck instance. The claim that had it
// may be gone from the API server, for which the place is free then: without the taint a pod would
// be sent there, and wait. domain is the driver's name.
func (s *Stuck) Taint(domain string) func(device.Device) []resourceapi.DeviceTaint {
	return func(d device.Device) []resourceapi.DeviceTaint {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, place := range s.places {
			if d.Overlaps(place) {
				return []resourceapi.DeviceTaint{{Key: domain + "/mig-instance-in-use", Value: "ended-claim", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
		return nil
	}
}

// Watched does the step "mig-instance" and notes what is stuck.
type Watched struct {
	Instance
	Stuck *Stuck
}

// Undo is Instance.Undo.
func (w Watched) Undo(ctx context.Context, params, output jsontext.Value) error {
	err := w.Instance.Undo(ctx, params, output)
	p, unreadable := decode[instanceParams](KindInstance, params)
	if unreadable == nil {
		w.Stuck.note(ctx, p.gpu(), p.instance().Placement(), err)
	}
	return err
}

func (s *Stuck) note(ctx context.Context, gpu inventory.GPUID, at inventory.MIGPlacement, err error) {
	place := fmt.Sprintf("%s %s", gpu.PCI, at)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.current[place]
	inUse := new(InUseError)
	switch is := errors.As(err, &inUse); {
	case is:
		if s.current == nil {
			s.current, s.places = map[string]string{}, map[string]device.Identity{}
		}
		s.current[place] = inUse.Error()
		// Whoever is there, the place alone matters.
		part := mig.Partition{Profile: inventory.MIGProfile{Name: "stuck"}, Placement: at}
		s.places[place] = device.Identity{PCI: gpu.PCI, GPUUUID: gpu.UUID, Partition: part.Key()}
	case was && err == nil:
		delete(s.current, place)
		delete(s.places, place)
	default:
		return
	}
	s.Tell(ctx, maps.Clone(s.current))
}

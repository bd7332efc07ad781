package migsteps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Stuck knows the instances that could not be removed since something uses them.
type Stuck struct {
	// Tell is told of all of them, by place, whenever one is added or goes.
	Tell func(ctx context.Context, current map[string]string)

	mu      sync.Mutex
	current map[string]string
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
		w.Stuck.note(ctx, fmt.Sprintf("%s %s", p.PCI, p.instance().Placement()), err)
	}
	return err
}

func (s *Stuck) note(ctx context.Context, place string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.current[place]
	inUse := new(InUseError)
	switch is := errors.As(err, &inUse); {
	case is:
		if s.current == nil {
			s.current = map[string]string{}
		}
		s.current[place] = inUse.Error()
	case was && err == nil:
		delete(s.current, place)
	default:
		return
	}
	s.Tell(ctx, maps.Clone(s.current))
}

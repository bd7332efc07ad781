package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/kubelet"
)

// Starts is how long the plugin takes to be of use after its process was started.
type Starts struct {
	// Registered is until the kubelet can call it, Published until the API server has the node's first slices.
	Registered, Published sample.Series
	// Restarted is until a plugin that was stopped, and Crashed until one that was killed, answers for a claim it
	// had prepared, with Prepared claims on the node.
	Prepared           int
	Restarted, Crashed sample.Series
	// SliceWrites and Writes are API requests of all restarts together that change slices, or anything.
	SliceWrites, Writes int
}

// TimeStarts starts the plugin on a machine on which none runs.
func TimeStarts(ctx context.Context, api bed.API, m *bed.Machine, claims bed.Claims, rounds int) (Starts, error) {
	s := Starts{Prepared: len(claims.Filling)}
	for range rounds {
		if err := s.fresh(ctx, m); err != nil {
			return s, err
		}
	}
	if err := s.restarts(ctx, api, m, claims, rounds); err != nil {
		return s, err
	}
	return s, nil
}

// fresh is one start on a node without slices.
func (s *Starts) fresh(ctx context.Context, m *bed.Machine) error {
	if err := m.Wipe(ctx); err != nil {
		return err
	}
	p, err := m.Start(ctx, bed.Options{})
	if err != nil {
		return err
	}
	if err := p.Registered(ctx); err != nil {
		return err
	}
	s.Registered = append(s.Registered, time.Since(p.Began()))
	if _, err := p.Published(ctx); err != nil {
		return err
	}
	s.Published = append(s.Published, time.Since(p.Began()))
	return p.Stop(ctx)
}

// restarts are starts on a node with prepared claims and unchanged slices, after stops and crashes in turn.
func (s *Starts) restarts(ctx context.Context, api bed.API, m *bed.Machine, claims bed.Claims, rounds int) error {
	p, err := m.Start(ctx, bed.Options{User: bed.Starter})
	if err != nil {
		return err
	}
	if err := p.Registered(ctx); err != nil {
		return err
	}
	subject := Subject{Machine: m, Plugin: p, Claims: claims}
	if err := subject.fill(ctx, 0, s.Prepared); err != nil {
		return err
	}
	if err := settled(ctx, p); err != nil {
		return err
	}
	before, err := api.Requests(bed.Starter)
	if err != nil {
		return err
	}
	for i := range 2 * rounds {
		end, took := p.Stop, &s.Restarted
		if i%2 == 1 {
			end, took = p.Kill, &s.Crashed
		}
		if err := end(ctx); err != nil {
			return err
		}
		if p, err = again(ctx, m, claims.Filling[s.Prepared/2], took); err != nil {
			return err
		}
	}
	after, err := api.Requests(bed.Starter)
	if err != nil {
		return err
	}
	s.count(after[len(before):])
	subject.Plugin = p
	if err := subject.drain(ctx, s.Prepared); err != nil {
		return err
	}
	return p.Stop(ctx)
}

// again starts the plugin and notes when it answers for an old claim.
func again(ctx context.Context, m *bed.Machine, old kubelet.Claim, took *sample.Series) (*bed.Plugin, error) {
	p, err := m.Start(ctx, bed.Options{User: bed.Starter})
	if err != nil {
		return nil, err
	}
	if err := p.Registered(ctx); err != nil {
		return nil, err
	}
	if err := m.Prepare(ctx, old); err != nil {
		return nil, err
	}
	*took = append(*took, time.Since(p.Began()))
	return p, settled(ctx, p)
}

// count adds requests to the writes.
func (s *Starts) count(requests []bed.Request) {
	for _, r := range requests {
		if r.Write() {
			s.Writes++
			if r.Resource == "resourceslices" {
				s.SliceWrites++
			}
		}
	}
}

// settled waits until a plugin would have written what it wants to: the slices are there and the controller,
// which takes about a second to start, has looked.
func settled(ctx context.Context, p *bed.Plugin) error {
	if _, err := p.Published(ctx); err != nil {
		return err
	}
	const look = 2 * time.Second
	return pause(ctx, time.Until(p.Began().Add(look)))
}

// String is the result as Markdown.
func (s Starts) String() string {
	t := sample.NewTable("from the start of the process", "median, ms", "least to most, ms")
	add := func(what string, series sample.Series) {
		t.Add(what, sample.Milliseconds(series.Median()), sample.Milliseconds(slices.Min(series))+" to "+sample.Milliseconds(slices.Max(series)))
	}
	add("until registered with the kubelet", s.Registered)
	add("until the API server has the node's first slices", s.Published)
	add(fmt.Sprintf("until it answers for an old claim, %d prepared, after SIGTERM", s.Prepared), s.Restarted)
	add(fmt.Sprintf("until it answers for an old claim, %d prepared, after SIGKILL", s.Prepared), s.Crashed)
	return fmt.Sprintf("### Starts\n\n%s\n%d starts of each kind. %d restarts with unchanged hardware wrote slices %d times, and anything at all %d times.\n",
		t, len(s.Registered), len(s.Restarted)+len(s.Crashed), s.SliceWrites, s.Writes)
}

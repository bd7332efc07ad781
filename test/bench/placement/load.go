package placement

import (
	"container/heap"
	"math/rand/v2"
)

// Kind is one kind of device in a demand.
type Kind struct {
	// Kind is a profile or Whole.
	Kind string
	// Units are its compute slices.
	Units int
	// Share of the requests, from 0 to 1.
	Share float64
}

// Demand is what is asked for; the shares sum up to 1.
type Demand []Kind

// Even asks for each kind as often as for any other.
func Even(kinds ...Kind) Demand { return weighted(kinds, func(Kind) float64 { return 1 }) }

// Small asks for a kind the more often the smaller it is: every kind demands as many units.
func Small(kinds ...Kind) Demand {
	return weighted(kinds, func(k Kind) float64 { return 1 / float64(k.Units) })
}

func weighted(kinds []Kind, weight func(Kind) float64) Demand {
	total := 0.0
	for _, k := range kinds {
		total += weight(k)
	}
	var out Demand
	for _, k := range kinds {
		k.Share = weight(k) / total
		out = append(out, k)
	}
	return out
}

// units is the mean of a request.
func (d Demand) units() float64 {
	mean := 0.0
	for _, k := range d {
		mean += k.Share * float64(k.Units)
	}
	return mean
}

func (d Demand) draw(r *rand.Rand) Kind {
	x := r.Float64()
	for _, k := range d {
		if x -= k.Share; x < 0 {
			return k
		}
	}
	return d[len(d)-1]
}

// Load is a random arrival of requests. One that finds no room is turned away; the others stay
// for a time of their own.
type Load struct {
	Demand Demand
	// Offered is the mean of the units that would be in use if nothing were turned away, as a
	// part of Capacity.
	Offered  float64
	Capacity int
	// Requests are counted after WarmUp requests.
	Requests, WarmUp int
	Seed             uint64
}

// stay is a device in use.
type stay struct {
	until  float64
	device int
}

type stays []stay

func (s stays) Len() int           { return len(s) }
func (s stays) Less(i, j int) bool { return s[i].until < s[j].until }
func (s stays) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *stays) Push(x any) {
	// container/heap gives back what it was given.
	if v, ok := x.(stay); ok {
		*s = append(*s, v)
	}
}

func (s *stays) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// Step is one request of a replay and its answer.
type Step struct {
	Kind Kind
	// Returned are devices whose use ended before.
	Returned []int
	Device   int
	Accepted bool
}

// Replay runs a load. Loads of one seed ask for the same at the same times, whoever chooses.
// Each is told of every request, in order.
func Replay(pool *Pool, chooser Chooser, load Load, each func(*State, Step)) error {
	state, err := NewState(pool)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(load.Seed, 0))
	rate := load.Offered * float64(load.Capacity) / load.Demand.units()
	now, live := 0.0, stays{}
	for range load.WarmUp + load.Requests {
		now += r.ExpFloat64() / rate
		step := Step{Kind: load.Demand.draw(r)}
		until := now + r.ExpFloat64()
		for len(live) > 0 && live[0].until <= now {
			ended, _ := heap.Pop(&live).(stay)
			state.Return(ended.device)
			step.Returned = append(step.Returned, ended.device)
		}
		step.Device, step.Accepted = chooser.Choose(state, step.Kind.Kind)
		each(state, step)
		if step.Accepted {
			state.Take(step.Device)
			heap.Push(&live, stay{until, step.Device})
		}
	}
	return nil
}

// Accepted is the part of the demanded units that a load gets.
func Accepted(pool *Pool, chooser Chooser, load Load) (float64, error) {
	n, asked, given := 0, 0, 0
	err := Replay(pool, chooser, load, func(_ *State, s Step) {
		if n++; n <= load.WarmUp {
			return
		}
		asked += s.Kind.Units
		if s.Accepted {
			given += s.Kind.Units
		}
	})
	return float64(given) / float64(asked), err
}

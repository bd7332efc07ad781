package placement

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Whole is the kind of whole GPUs; the kind of partitions is their profile.
const Whole = "whole"

// Device is one published device. Devices exclude each other by the counters that they take.
type Device struct {
	Name string
	// Kind is a profile, or Whole.
	Kind string
	// Set is the number of the counter set.
	Set int
	// Start is the first memory slice of a partition.
	Start int
	takes []amount
	// at is the device's number within its set.
	at int
}

type amount struct {
	counter int
	value   int64
}

// Pool is the devices of one node, in the order of allocation, and what there is of each counter.
type Pool struct {
	Devices []Device
	// sets are the amounts of each counter set.
	sets  [][]int64
	kinds map[string][]int
	// bySet are the devices of each set, by their number within it.
	bySet [][]int
}

// NewPool reads a pool out of the slices that the driver publishes.
func NewPool(published []resourceslice.Slice) (*Pool, error) {
	p := &Pool{}
	numbers, counters := map[string]int{}, []map[string]int{}
	for _, s := range published {
		for _, set := range s.SharedCounters {
			numbers[set.Name] = len(p.sets)
			names := map[string]int{}
			var values []int64
			for name, c := range set.Counters {
				names[name] = len(values)
				values = append(values, c.Value.Value())
			}
			counters, p.sets = append(counters, names), append(p.sets, values)
		}
	}
	for _, s := range published {
		for _, d := range s.Devices {
			if len(d.ConsumesCounters) != 1 {
				return nil, fmt.Errorf("device %s takes from %d counter sets, not one", d.Name, len(d.ConsumesCounters))
			}
			take := d.ConsumesCounters[0]
			set, ok := numbers[take.CounterSet]
			if !ok {
				return nil, fmt.Errorf("device %s: there is no counter set %s", d.Name, take.CounterSet)
			}
			out := Device{Name: d.Name, Kind: Whole, Set: set}
			if profile := d.Attributes["profile"].StringValue; profile != nil {
				out.Kind, out.Start = *profile, int(number(d, "migPlacementStart"))
			}
			for name, c := range take.Counters {
				counter, ok := counters[set][name]
				if !ok {
					return nil, fmt.Errorf("device %s: counter set %s has no %s", d.Name, take.CounterSet, name)
				}
				out.takes = append(out.takes, amount{counter, c.Value.Value()})
			}
			p.Devices = append(p.Devices, out)
		}
	}
	p.index()
	return p, nil
}

func number(d resourceapi.Device, attribute resourceapi.QualifiedName) int64 {
	if v := d.Attributes[attribute].IntValue; v != nil {
		return *v
	}
	return 0
}

// maxPerSet is what a bit mask holds.
const maxPerSet = 64

func (p *Pool) index() {
	p.kinds, p.bySet = map[string][]int{}, make([][]int, len(p.sets))
	for i := range p.Devices {
		d := &p.Devices[i]
		d.at = len(p.bySet[d.Set])
		p.bySet[d.Set] = append(p.bySet[d.Set], i)
		p.kinds[d.Kind] = append(p.kinds[d.Kind], i)
	}
}

// Sorted is the pool with its devices in another order; equal ones keep theirs.
func (p *Pool) Sorted(order func(a, b Device) int) *Pool {
	out := &Pool{Devices: slices.Clone(p.Devices), sets: p.sets}
	slices.SortStableFunc(out.Devices, order)
	out.index()
	return out
}

// StartByStart takes a place on every GPU before the next place on any: the order of a driver
// that does not keep a GPU's devices together.
func StartByStart(a, b Device) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Set, b.Set))
}

// State is a pool of which devices are in use.
type State struct {
	pool *Pool
	left [][]int64
	// taken is a bit for each device, by set.
	taken []uint64
}

// NewState is the pool with nothing in use. It fails for more devices of a GPU than it can count.
func NewState(p *Pool) (*State, error) {
	s := &State{pool: p, taken: make([]uint64, len(p.sets))}
	for i, values := range p.sets {
		if len(p.bySet[i]) > maxPerSet {
			return nil, fmt.Errorf("counter set %d has %d devices, more than %d", i, len(p.bySet[i]), maxPerSet)
		}
		s.left = append(s.left, slices.Clone(values))
	}
	return s, nil
}

// Fits tells whether a device and all that it takes are free.
func (s *State) Fits(device int) bool {
	d := &s.pool.Devices[device]
	if s.taken[d.Set]&(1<<d.at) != 0 {
		return false
	}
	left := s.left[d.Set]
	for _, t := range d.takes {
		if left[t.counter] < t.value {
			return false
		}
	}
	return true
}

// Take puts a device to use, Return ends that.
func (s *State) Take(device int) { s.add(device, -1) }

// Return gives back what Take took.
func (s *State) Return(device int) { s.add(device, 1) }

func (s *State) add(device int, sign int64) {
	d := &s.pool.Devices[device]
	s.taken[d.Set] ^= 1 << d.at
	for _, t := range d.takes {
		s.left[d.Set][t.counter] += sign * t.value
	}
}

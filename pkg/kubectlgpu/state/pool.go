package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// pool names one pool of one driver.
type pool struct{ driver, name string }

// Newest are the slices of the newest generation of each pool: others are about to go.
func (s *State) Newest() []*resourceapi.ResourceSlice {
	newest := map[pool]int64{}
	for _, slice := range s.Slices {
		key := pool{slice.Spec.Driver, slice.Spec.Pool.Name}
		newest[key] = max(newest[key], slice.Spec.Pool.Generation)
	}
	var out []*resourceapi.ResourceSlice
	for _, slice := range s.Slices {
		if slice.Spec.Pool.Generation == newest[pool{slice.Spec.Driver, slice.Spec.Pool.Name}] {
			out = append(out, slice)
		}
	}
	return out
}

// Incomplete is a pool that lacks slices: the scheduler gives nothing of it to anybody.
type Incomplete struct {
	Driver, Pool string
	// Have and Want count slices of the newest generation.
	Have, Want int64
}

func (i Incomplete) String() string {
	return fmt.Sprintf("pool %s of driver %s is incomplete: %d of %d slices; it heals when the node's driver has published all", i.Pool, i.Driver, i.Have, i.Want)
}

// Incomplete are the pools that lack slices, sorted.
func (s *State) Incomplete() []Incomplete {
	have, want := map[pool]int64{}, map[pool]int64{}
	for _, slice := range s.Newest() {
		key := pool{slice.Spec.Driver, slice.Spec.Pool.Name}
		have[key]++
		want[key] = slice.Spec.Pool.ResourceSliceCount
	}
	var out []Incomplete
	for _, key := range slices.SortedFunc(maps.Keys(have), func(a, b pool) int { return strings.Compare(a.driver+"/"+a.name, b.driver+"/"+b.name) }) {
		if have[key] != want[key] {
			out = append(out, Incomplete{Driver: key.driver, Pool: key.name, Have: have[key], Want: want[key]})
		}
	}
	return out
}

// Counters are what the counter sets of all pools have left.
type Counters struct {
	left map[pool]map[string]map[string]resource.Quantity
	// users are the devices in use of each counter set.
	users map[pool]map[string][]string
}

// Counters tells what is left when the devices that are in use have taken theirs.
func (s *State) Counters() Counters { return s.CountersOf(s.Devices()) }

// CountersOf is Counters for one who has the state's devices already.
func (s *State) CountersOf(devices []Device) Counters {
	c := Counters{left: map[pool]map[string]map[string]resource.Quantity{}, users: map[pool]map[string][]string{}}
	for _, slice := range s.Newest() {
		key := pool{slice.Spec.Driver, slice.Spec.Pool.Name}
		for _, set := range slice.Spec.SharedCounters {
			if c.left[key] == nil {
				c.left[key], c.users[key] = map[string]map[string]resource.Quantity{}, map[string][]string{}
			}
			c.left[key][set.Name] = map[string]resource.Quantity{}
			for name, counter := range set.Counters {
				c.left[key][set.Name][name] = counter.Value.DeepCopy()
			}
		}
	}
	for _, d := range devices {
		if len(d.Exclusive()) > 0 {
			c.take(d)
		}
	}
	return c
}

func (c Counters) take(d Device) {
	key := pool{d.Driver, d.Pool}
	for _, use := range d.Spec.ConsumesCounters {
		left := c.left[key][use.CounterSet]
		if left == nil {
			continue
		}
		for name, counter := range use.Counters {
			rest := left[name]
			rest.Sub(counter.Value)
			left[name] = rest
		}
		c.users[key][use.CounterSet] = append(c.users[key][use.CounterSet], d.Name)
	}
}

// blocks names the devices in use that leave too little for a device that is not; empty when there
// is enough.
func (c Counters) blocks(d Device) string {
	if len(d.Exclusive()) > 0 {
		return ""
	}
	key := pool{d.Driver, d.Pool}
	for _, use := range d.Spec.ConsumesCounters {
		for _, name := range slices.Sorted(maps.Keys(use.Counters)) {
			left := c.left[key][use.CounterSet][name]
			if need := use.Counters[name].Value; need.Cmp(left) > 0 {
				users := c.users[key][use.CounterSet]
				if len(users) == 0 {
					return fmt.Sprintf("counter %s of %s has %s, %s is needed", name, use.CounterSet, left.String(), need.String())
				}
				return fmt.Sprintf("in use: %v", users)
			}
		}
	}
	return ""
}

// AtMost is the largest number of devices like those given, all of one pool, that what is left of
// one counter set can serve: an upper bound, since each may need the same piece.
func (c Counters) AtMost(set string, devices []Device) int {
	least := map[string]resource.Quantity{}
	var of pool
	for _, d := range devices {
		of = pool{d.Driver, d.Pool}
		for _, use := range d.Spec.ConsumesCounters {
			if use.CounterSet != set {
				continue
			}
			for name := range c.left[of][set] {
				need := use.Counters[name].Value
				if have, ok := least[name]; !ok || need.Cmp(have) < 0 {
					least[name] = need
				}
			}
		}
	}
	most := len(devices)
	for name, need := range least {
		if need.Sign() <= 0 {
			continue
		}
		left := c.left[of][set][name]
		most = min(most, max(0, int(left.Value()/need.Value())))
	}
	return most
}

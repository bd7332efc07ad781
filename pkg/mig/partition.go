package mig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// Partition is one profile at one place: something that can exist.
type Partition struct {
	Profile   inventory.MIGProfile
	Placement inventory.MIGPlacement
	// Label is the partition's part of its device's name, distinct within the GPU: "1g-10gb-0".
	Label string
}

// Key tells the partition from all others of its GPU, for as long as boards and records live:
// "1g.10gb:0+1" is the profile, the start and the size in memory slices.
func (p Partition) Key() string {
	return fmt.Sprintf("%s:%d+%d", p.Profile.Name, p.Placement.Start, p.Placement.Size)
}

// ParseKey reads the placement out of a Key.
func ParseKey(key string) (profile string, at inventory.MIGPlacement, err error) {
	i := strings.LastIndexByte(key, ':')
	if i < 1 {
		return "", at, fmt.Errorf("partition %q is not of the form profile:start+size", key)
	}
	start, size, _ := strings.Cut(key[i+1:], "+")
	at.Start, err = parseNumber(start)
	if err == nil {
		at.Size, err = parseNumber(size)
	}
	if err != nil || at.Size == 0 {
		return "", inventory.MIGPlacement{}, fmt.Errorf("partition %q is not of the form profile:start+size", key)
	}
	return key[:i], at, nil
}

// parseNumber takes what Key writes and nothing else, so that equal partitions have equal keys.
func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q is not a number from 0 to 65535", text)
	}
	return int(n), nil
}

// Order sorts the partitions of one GPU by allocation priority. The scheduler takes the first
// that fits and GPUs come one after the other, so the order decides how much room is left for
// large ones.
type Order func(a, b Partition) int

// SmallFromTheEnd is the default order. Small profiles come first, so that a claim which only
// says how much memory it needs does not get more than that; and each profile comes from the
// last placement on, so that small ones stay away from the front, where the largest profiles
// can be alone.
func SmallFromTheEnd(a, b Partition) int { return b.Placement.Start - a.Placement.Start }

// Partitions lists everything that can exist, profile by profile, small ones first, and within
// a profile in the given order; nil is SmallFromTheEnd.
func (g Geometry) Partitions(order Order) []Partition {
	if order == nil {
		order = SmallFromTheEnd
	}
	var out []Partition
	for _, p := range g.profiles {
		first := len(out)
		for _, at := range p.Placements {
			if at.Start >= 0 && at.Size > 0 {
				out = append(out, g.partition(p, at))
			}
		}
		slices.SortStableFunc(out[first:], order)
	}
	return out
}

func (g Geometry) partition(p inventory.MIGProfile, at inventory.MIGPlacement) Partition {
	label := fmt.Sprintf("%s-%d", g.labels[p.ID], at.Start)
	if slices.ContainsFunc(p.Placements, func(other inventory.MIGPlacement) bool { return other.Start == at.Start && other.Size != at.Size }) {
		label = fmt.Sprintf("%s-%d", label, at.Size)
	}
	return Partition{Profile: p, Placement: at, Label: label}
}

// PartitionOf is the partition that an instance is. Of a profile that the geometry does not
// have, only the place is known: it has no Label then.
func (g Geometry) PartitionOf(instance inventory.MIGInstance) Partition {
	p, ok := g.Profile(instance.ProfileID)
	if !ok {
		return Partition{Placement: instance.Placement}
	}
	return g.partition(p, instance.Placement)
}

// Fits tells whether the GPU has enough of everything for a partition beside others.
func (g Geometry) Fits(p Partition, beside []Partition) bool {
	if len(beside) == 0 {
		return true
	}
	left := maps.Clone(g.totals)
	for _, other := range append([]Partition{p}, beside...) {
		for name, amount := range g.amounts(other) {
			left[name] -= amount
		}
	}
	for name := range g.amounts(p) {
		if left[name] < 0 {
			return false
		}
	}
	return true
}

// SwitchesAtOnce tells whether the GPU's MIG mode can be switched without resetting it. NVML has
// no question for that, and what it answers to the deed is too late: A100 and A30 (compute
// capability 8.0) need the reset, boards since Hopper (9.0) do not (MIG user guide, "MIG mode").
func SwitchesAtOnce(gpu inventory.GPU) bool { return gpu.MIG.Capable && gpu.ComputeMajor >= 9 }

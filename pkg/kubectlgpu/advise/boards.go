package advise

import (
	"fmt"
	"strings"
)

// Board has the published figures of a GPU. NVML does not tell the memory bandwidth, and advice is
// asked for before there is a node: these numbers are the vendor's data sheets, in decimal units,
// and are used for nothing but advice.
type Board struct {
	Name string `json:"name"`
	// MemoryGB and BandwidthGBps are in 10^9 bytes and 10^9 bytes a second.
	MemoryGB      float64 `json:"memoryGB"`
	BandwidthGBps float64 `json:"bandwidthGBps"`
	// Slices is what profiles have a share of: 7 for most, 4 for A30.
	Slices   int       `json:"computeSlices,omitempty"`
	Profiles []Profile `json:"-"`
}

// Profile is a MIG profile as sold.
type Profile struct {
	Name string
	// Instances is how many a GPU has of it, Slices the compute slices of one.
	Instances, Slices int
	MemoryGB          float64
}

// sevenths are the profiles of boards with seven compute slices and memory of 8 parts.
func sevenths(one, two, three, seven float64) []Profile {
	name := func(slices int, gb float64) string { return fmt.Sprintf("%dg.%.0fgb", slices, gb) }
	return []Profile{
		{Name: name(1, one), Instances: 7, Slices: 1, MemoryGB: one},
		{Name: name(2, two), Instances: 3, Slices: 2, MemoryGB: two},
		{Name: name(3, three), Instances: 2, Slices: 3, MemoryGB: three},
		{Name: name(7, seven), Instances: 1, Slices: 7, MemoryGB: seven},
	}
}

// Boards are the GPUs that advice knows.
func Boards() []Board {
	return []Board{
		{Name: "A100-40", MemoryGB: 40, BandwidthGBps: 1555, Slices: 7, Profiles: sevenths(5, 10, 20, 40)},
		{Name: "A100-80", MemoryGB: 80, BandwidthGBps: 2039, Slices: 7, Profiles: sevenths(10, 20, 40, 80)},
		{Name: "A30", MemoryGB: 24, BandwidthGBps: 933, Slices: 4, Profiles: []Profile{
			{Name: "1g.6gb", Instances: 4, Slices: 1, MemoryGB: 6}, {Name: "2g.12gb", Instances: 2, Slices: 2, MemoryGB: 12}, {Name: "4g.24gb", Instances: 1, Slices: 4, MemoryGB: 24},
		}},
		{Name: "B200", MemoryGB: 180, BandwidthGBps: 8000, Slices: 7, Profiles: sevenths(23, 45, 90, 180)},
		{Name: "H100-80", MemoryGB: 80, BandwidthGBps: 3350, Slices: 7, Profiles: sevenths(10, 20, 40, 80)},
		{Name: "H200", MemoryGB: 141, BandwidthGBps: 4800, Slices: 7, Profiles: sevenths(18, 35, 71, 141)},
		{Name: "L40S", MemoryGB: 48, BandwidthGBps: 864},
		{Name: "RTX-4090", MemoryGB: 24, BandwidthGBps: 1008},
		{Name: "T4", MemoryGB: 16, BandwidthGBps: 320},
	}
}

// Names are the boards' names.
func Names() []string {
	var out []string
	for _, b := range Boards() {
		out = append(out, b.Name)
	}
	return out
}

// Find finds a board by name, in any case.
func Find(name string) (Board, error) {
	for _, b := range Boards() {
		if strings.EqualFold(b.Name, name) {
			return b, nil
		}
	}
	return Board{}, fmt.Errorf("--gpu %q is none of %s", name, strings.Join(Names(), ", "))
}

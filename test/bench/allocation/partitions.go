package allocation

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// PartitionCases are the requests that matter on a node whose GPUs are cut on demand, all of one
// board: those of most pods, and those that fail last. The small ones are of the profile that is
// published first.
func PartitionCases(pool []resourceslice.Slice) []Case {
	var whole []string
	small, profile := map[string][]string{}, ""
	for _, s := range pool {
		for _, d := range s.Devices {
			p := d.Attributes["profile"].StringValue
			switch {
			case p == nil:
				whole = append(whole, d.Name)
				continue
			case profile == "":
				profile = *p
			}
			if parent := d.Attributes["parentUUID"].StringValue; parent != nil && *p == profile {
				small[*parent] = append(small[*parent], d.Name)
			}
		}
	}
	n, most := len(whole), 0
	for _, devices := range small {
		most = max(most, len(devices))
	}
	// beside takes all but so many of the small ones of every GPU.
	beside := func(free int) (taken []string) {
		for _, devices := range small {
			taken = append(taken, devices[:len(devices)-free]...)
		}
		return taken
	}
	cases := []Case{
		{Name: "1 × " + profile, Count: 1, Profile: profile, Fits: true},
		{Name: fmt.Sprintf("%d × %s", most, profile), Count: most, Profile: profile, Fits: true},
		{Name: fmt.Sprintf("%d × %s of one GPU", most, profile), Count: most, Profile: profile, OneParent: true, Fits: true},
		{Name: "1 whole GPU", Count: 1, Fits: true},
		{Name: "1 whole GPU, one partition on each: no", Count: 1, Taken: beside(most - 1)},
		{Name: fmt.Sprintf("%d whole GPUs", n), Count: n, Fits: true},
		{Name: fmt.Sprintf("%d whole GPUs, one taken: no", n), Count: n, Taken: whole[:1]},
		{Name: fmt.Sprintf("%d whole GPUs: no", n+1), Count: n + 1},
	}
	for free := 3; free <= most; free++ {
		cases = append(cases, Case{
			Name:  fmt.Sprintf("%d × %s of one GPU, %d free on each: no", free+1, profile, free),
			Count: free + 1, Profile: profile, OneParent: true, Taken: beside(free),
		})
	}
	return cases
}

// CPU is the mean processor time of at least runs calls: a search that takes long is stretched by
// whatever else the machine does, its processor time is not. Nothing else of this process may run.
func (c Case) CPU(ctx context.Context, pool []resourceslice.Slice, runs int) (time.Duration, error) {
	const enough = 50 * time.Millisecond
	ask := c.Ask(pool)
	// The first call compiles the class's selector.
	if err := ask(ctx); err != nil {
		return 0, err
	}
	begun, err := used()
	if err != nil {
		return 0, err
	}
	for n := 1; ; n++ {
		if err := ask(ctx); err != nil {
			return 0, err
		}
		now, err := used()
		if err != nil {
			return 0, err
		}
		if took := now - begun; n >= runs && took >= enough {
			return took / time.Duration(n), nil
		}
	}
}

// used is the processor time that this process has had.
func used() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// Package allocation times the scheduler's own allocator on the slices of one node, for requests that fit and
// for requests that do not. It takes slices as they were published and does not know how they came about.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/test/bench/sample"
)

// FilterTimeout is how long kube-scheduler lets the allocator search on one node.
const FilterTimeout = 10 * time.Second

const domainAttribute = "nvlinkDomain"

// Case is one request on a node.
type Case struct {
	Name string
	// Count GPUs, of one NVLink domain where OneDomain is set.
	Count     int
	OneDomain bool
	// Profile asks for partitions of it instead of whole GPUs, of one GPU where OneParent is set.
	Profile   string
	OneParent bool
	// Taken are devices that others have.
	Taken []string
	// Fits is the right answer.
	Fits bool
}

// Cases are the requests that matter on a node with these slices: the smallest, the largest that fit, and
// those that fail last.
func Cases(pool []resourceslice.Slice) []Case {
	var names, first []string
	domains := map[string]int{}
	largest := 0
	for _, s := range pool {
		for _, d := range s.Devices {
			names = append(names, d.Name)
			domain := d.Attributes[domainAttribute].StringValue
			if domain == nil {
				continue
			}
			if domains[*domain] == 0 {
				first = append(first, d.Name)
			}
			domains[*domain]++
			largest = max(largest, domains[*domain])
		}
	}
	n := len(names)
	cases := []Case{
		{Name: "1 GPU", Count: 1, Fits: true},
		{Name: fmt.Sprintf("all %d GPUs", n), Count: n, Fits: true},
		{Name: fmt.Sprintf("all %d GPUs, one taken", n), Count: n, Taken: names[:1]},
		{Name: "one GPU more than there are", Count: n + 1},
	}
	if largest > 1 {
		cases = append(cases,
			Case{Name: fmt.Sprintf("%d GPUs of one NVLink domain", largest), Count: largest, OneDomain: true, Fits: true},
			Case{Name: fmt.Sprintf("%d GPUs of one NVLink domain, one of each taken", largest), Count: largest, OneDomain: true, Taken: first})
	}
	return cases
}

// errAnswer says that the allocator's answer is not the right one.
var errAnswer = errors.New("wrong answer of the allocator")

// Ask is the case as a call of the allocator, with the features of a default 1.37 scheduler. A call that takes
// longer than [FilterTimeout] fails as it does in the scheduler.
func (c Case) Ask(pool []resourceslice.Slice) func(context.Context) error {
	scheduler := slicestest.New(pool, false)
	scheduler.Take(c.Taken...)
	constraint, request := "", slicestest.Request("gpus", int64(c.Count))
	if c.OneDomain {
		constraint = slicestest.Driver + "/" + domainAttribute
	}
	if c.Profile != "" {
		request = slicestest.Partition("parts", int64(c.Count), fmt.Sprintf("device.attributes[%q].profile == %q", slicestest.Driver, c.Profile))
	}
	if c.OneParent {
		constraint = slicestest.Driver + "/parentUUID"
	}
	claim := slicestest.Claim(constraint, request)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, FilterTimeout)
		defer cancel()
		got, err := scheduler.Free(ctx, claim)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if (len(got) == c.Count) != c.Fits {
			return fmt.Errorf("%w: %s: got %q", errAnswer, c.Name, got)
		}
		return nil
	}
}

// Time measures a case: at least runs calls, and more as long as they are quick.
func (c Case) Time(ctx context.Context, pool []resourceslice.Slice, runs int) (sample.Series, error) {
	const quick = 20 * time.Millisecond
	ask := c.Ask(pool)
	// The first call compiles the class's selector.
	if err := ask(ctx); err != nil {
		return nil, err
	}
	var series sample.Series
	begun := time.Now()
	for len(series) < runs || time.Since(begun) < quick {
		start := time.Now()
		if err := ask(ctx); err != nil {
			return series, err
		}
		series = append(series, time.Since(start))
	}
	return series, nil
}

// Pool takes a node's pool out of its API objects, which are in the order of the list.
func Pool(slices []resourceapi.ResourceSlice) []resourceslice.Slice {
	var pool []resourceslice.Slice
	for i := range slices {
		pool = append(pool, resourceslice.Slice{Devices: slices[i].Spec.Devices, SharedCounters: slices[i].Spec.SharedCounters})
	}
	return pool
}

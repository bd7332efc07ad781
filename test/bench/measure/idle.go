package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-dra/driver/test/bench/bed"
)

// Idle is what a plugin with nothing to do asks of the API server.
type Idle struct {
	Watched  time.Duration
	Requests map[string]int
	Writes   int
}

// WatchIdle watches a plugin on a machine of its own while during runs, from some time after its start. Nobody else may be [bed.Idler] meanwhile.
func WatchIdle(ctx context.Context, api bed.API, m *bed.Machine, during func(context.Context) error) (Idle, error) {
	var result Idle
	p, err := m.Start(ctx, bed.Options{User: bed.Idler})
	if err != nil {
		return result, err
	}
	if _, err := p.Published(ctx); err != nil {
		return result, err
	}
	// The publisher looks again for half a minute after a registration.
	const settle = 40 * time.Second
	if err := pause(ctx, settle); err != nil {
		return result, err
	}
	before, err := api.Requests(bed.Idler)
	if err != nil {
		return result, err
	}
	begun := time.Now()
	if err := during(ctx); err != nil {
		return result, err
	}
	after, err := api.Requests(bed.Idler)
	if err != nil {
		return result, err
	}
	result = tally(after[len(before):])
	result.Watched = time.Since(begun)
	return result, p.Stop(ctx)
}

func tally(requests []bed.Request) Idle {
	result := Idle{Requests: map[string]int{}}
	for _, r := range requests {
		result.Requests[r.Verb+" "+r.Resource]++
		if r.Write() {
			result.Writes++
		}
	}
	return result
}

// String is the result as Markdown.
func (i Idle) String() string {
	var all []string
	for _, what := range slices.Sorted(slices.Values(sortedKeys(i.Requests))) {
		all = append(all, fmt.Sprintf("%d × %s", i.Requests[what], what))
	}
	if len(all) == 0 {
		all = []string{"none"}
	}
	return fmt.Sprintf("### Idle\n\nRequests to the API server in %.0f s without work, from 40 s after the start: %s. Writes: %d.\n", i.Watched.Seconds(), strings.Join(all, ", "), i.Writes)
}

package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/loopback"
)

// Idle is what a plugin with nothing to do asks of the API server, and what it costs.
type Idle struct {
	Watched time.Duration
	// CPU is the processor time meanwhile, of which Scrapes of its metrics are a part.
	CPU     time.Duration
	Scrapes int
	// PerScrape is the processor time of one scrape, measured apart.
	PerScrape time.Duration
	GPUs      int
	Requests  map[string]int
	Writes    int
}

// WatchIdle watches a plugin on a machine of its own while during runs, from some time after its start. Nobody else may be [bed.Idler] meanwhile.
func WatchIdle(ctx context.Context, api bed.API, m *bed.Machine, during func(context.Context) error) (Idle, error) {
	var result Idle
	address := loopback.Address(8080)
	p, err := m.Start(ctx, bed.Options{User: bed.Idler, Flags: []string{"--http-address=" + address}})
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
	cpu, scrapes, err := processorTime(ctx, p, address, during)
	watched := time.Since(begun)
	if err != nil {
		return result, err
	}
	after, err := api.Requests(bed.Idler)
	if err != nil {
		return result, err
	}
	result = tally(after[len(before):])
	result.Watched, result.CPU, result.Scrapes, result.GPUs = watched, cpu, scrapes, m.Sim().GPUCount()
	const many = 200
	cpu, _, err = processorTime(ctx, p, address, func(ctx context.Context) error {
		for range many {
			if err := scrape(ctx, address); err != nil {
				return err
			}
		}
		return nil
	})
	result.PerScrape = cpu / many
	return result, errors.Join(err, p.Stop(ctx))
}

// scrapeEvery is how often a Prometheus usually comes.
const scrapeEvery = 15 * time.Second

// processorTime is the processor time that the plugin uses while something runs, and how often it was scraped
// meanwhile.
func processorTime(ctx context.Context, p *bed.Plugin, address string, during func(context.Context) error) (used time.Duration, scrapes int, err error) {
	before, err := p.CPU()
	if err != nil {
		return 0, 0, err
	}
	done := make(chan error, 1)
	go func() { done <- during(ctx) }()
	ticker := time.NewTicker(scrapeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := scrape(ctx, address); err != nil {
				return 0, 0, err
			}
			scrapes++
			continue
		case err = <-done:
		}
		break
	}
	after, cpuErr := p.CPU()
	return after - before, scrapes, errors.Join(err, cpuErr)
}

func scrape(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("scrape the metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("scrape the metrics: %s", response.Status)
	}
	return err
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
	share := 0.0
	if i.Watched > 0 {
		share = 100 * i.CPU.Seconds() / i.Watched.Seconds()
	}
	return fmt.Sprintf("### Idle\n\nRequests to the API server in %.0f s without work, from 40 s after the start: %s. Writes: %d.\n\n"+
		"Processor time meanwhile, with %d GPUs read every 5 s and %d scrapes of the metrics: %.2f s, %.2f %% of a core. One scrape: %.1f ms.\n",
		i.Watched.Seconds(), strings.Join(all, ", "), i.Writes, i.GPUs, i.Scrapes, i.CPU.Seconds(), share, float64(i.PerScrape.Microseconds())/1000)
}

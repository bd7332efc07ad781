package measure

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-dra/driver/test/bench/sample"
)

// Callers is how many prepare and unprepare pairs a second one caller and several get.
type Callers struct {
	Callers, PerRound int
	// One and Many are pairs a second, a value for each round.
	One, Many []float64
	// Single and Batch are the time of one call for one claim and of one call for a claim of every GPU.
	Single, Batch sample.Rounds
	// BatchFloor is the floor that many times.
	BatchFloor sample.Rounds
}

// RateCallers has one caller and as many as there are GPUs prepare and unprepare, each on a GPU of its own, in turn. Every
// call must succeed. Each caller makes pairs pairs in a round.
func RateCallers(ctx context.Context, s Subject, rounds, pairs int) (Callers, error) {
	c := Callers{Callers: len(s.Claims.Whole), PerRound: pairs}
	f := floor{dir: s.Machine.Scratch(), client: s.Machine.Client, claim: s.Claims.Whole[0]}
	for range rounds {
		one, err := s.rate(ctx, 1, pairs*2)
		if err != nil {
			return c, err
		}
		many, err := s.rate(ctx, c.Callers, pairs)
		if err != nil {
			return c, err
		}
		c.One, c.Many = append(c.One, one), append(c.Many, many)
		if err := c.batches(ctx, s, f, pairs/4+1); err != nil {
			return c, err
		}
	}
	return c, nil
}

// rate gives pairs a second.
func (s Subject) rate(ctx context.Context, callers, pairs int) (float64, error) {
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	for i := range callers {
		claim := s.Claims.Whole[i]
		group.Go(func() error {
			for range pairs {
				if err := s.Machine.Prepare(ctx, claim); err != nil {
					return err
				}
				if err := s.Machine.Unprepare(ctx, claim); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(callers*pairs) / time.Since(begun).Seconds(), err
}

// batches measures calls with a claim of every GPU.
func (c *Callers) batches(ctx context.Context, s Subject, f floor, n int) error {
	var single, all, floors sample.Series
	for range n {
		one, err := f.once(ctx)
		if err != nil {
			return err
		}
		floors = append(floors, (one.files+one.get)*time.Duration(len(s.Claims.Whole)))
		begun := time.Now()
		if err := s.Machine.Prepare(ctx, s.Claims.Whole[0]); err != nil {
			return err
		}
		single = append(single, time.Since(begun))
		if err := s.Machine.Unprepare(ctx, s.Claims.Whole[0]); err != nil {
			return err
		}
		begun = time.Now()
		if err := s.Machine.Prepare(ctx, s.Claims.Whole...); err != nil {
			return err
		}
		all = append(all, time.Since(begun))
		if err := s.Machine.Unprepare(ctx, s.Claims.Whole...); err != nil {
			return err
		}
	}
	c.Single, c.Batch, c.BatchFloor = append(c.Single, single), append(c.Batch, all), append(c.BatchFloor, floors)
	return nil
}

// String is the result as Markdown.
func (c Callers) String() string {
	t := sample.NewTable("", "one caller", fmt.Sprintf("%d callers, a GPU each", c.Callers), "ratio")
	one, many := sample.Median(c.One), sample.Median(c.Many)
	var ratios []float64
	for i := range c.One {
		ratios = append(ratios, c.Many[i]/c.One[i])
	}
	t.Add("prepare + unprepare pairs a second", fmt.Sprintf("%.0f", one), fmt.Sprintf("%.0f", many), sample.Times(sample.Median(ratios)))
	t.Add(fmt.Sprintf("one call for 1 and for %d claims, ms", c.Callers), sample.Milliseconds(c.Single.Median()), sample.Milliseconds(c.Batch.Median()), sample.Times(c.Batch.Ratio(c.Single)))
	return fmt.Sprintf("### Callers at the same time\n\n%s\n%d rounds, %d pairs a caller and round, no failed call. The call for %d claims takes %s of %d floors.\n",
		t, len(c.One), c.PerRound, c.Callers, sample.Times(c.Batch.Ratio(c.BatchFloor)), c.Callers)
}

// throttled counts the lines of a log that tell of a client that made itself wait.
func throttled(log string) (int, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return 0, fmt.Errorf("log of the plugin: %w", err)
	}
	return strings.Count(string(text), "client-side throttling"), nil
}

// Burst is what the plugin's own limits on API requests do to many claims that come at once.
type Burst struct {
	Claims, Callers, Waits int
	Took                   sample.Series
}

// TimeBurst has the filling claims prepared by several callers at once, one claim a call, with the plugin's
// default settings but for --v=3, with which the client logs every wait of over 50 ms.
func TimeBurst(ctx context.Context, s Subject, claims, callers, rounds int) (Burst, error) {
	b := Burst{Claims: claims, Callers: callers}
	for range rounds {
		// The bucket of requests fills at 100 a second; a burst is what comes after some quiet.
		const quiet = 2500 * time.Millisecond
		if err := pause(ctx, quiet); err != nil {
			return b, err
		}
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(callers)
		begun := time.Now()
		for _, claim := range s.Claims.Filling[:claims] {
			group.Go(func() error { return s.Machine.Prepare(gctx, claim) })
		}
		if err := group.Wait(); err != nil {
			return b, err
		}
		b.Took = append(b.Took, time.Since(begun))
		if err := s.drain(ctx, claims); err != nil {
			return b, err
		}
	}
	var err error
	b.Waits, err = throttled(s.Plugin.Log())
	return b, err
}

// String is the result as Markdown.
func (b Burst) String() string {
	return fmt.Sprintf("Default client limits: %d claims by %d callers at once, one claim a call, took %s s (median of %d); the client made itself wait (over 50 ms) %d times in all of this process's life.\n",
		b.Claims, b.Callers, sample.Seconds(b.Took.Median()), len(b.Took), b.Waits)
}

// pause waits, or ends early with ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package placement

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-dra/driver/test/bench/sample"
)

// Options of a study.
type Options struct {
	// Loads are the offered loads, as parts of what the node has.
	Loads []float64
	// Seeds is the number of repetitions with loads of their own.
	Seeds int
	// Requests of a repetition, after WarmUp.
	Requests, WarmUp int
}

// Rule is a way to place.
type Rule struct {
	Name    string
	Pool    *Pool
	Chooser func(Demand) Chooser
}

func firstFit(Demand) Chooser { return FirstFit{} }

// Rules are those that a study compares: the published order, two others, and best fit in two
// forms, which may choose freely.
func Rules(published *Pool) []Rule {
	starts := PublishedStarts(published)
	return []Rule{
		{"published", published, firstFit},
		{"ascending", starts.Ascending().Pool(published), firstFit},
		{"start by start", published.Sorted(StartByStart), firstFit},
		{"least loss", published, func(d Demand) Chooser { return NewBestFit(d, false) }},
		{"fullest GPU", published, func(d Demand) Chooser { return NewBestFit(d, true) }},
	}
}

// Kinds are what is asked for of a board: its profiles without extra engines. Where whole GPUs are
// on offer, they stand for the profile of all compute slices.
func Kinds(p *Pool) ([]Kind, error) {
	var out []Kind
	most := 0
	for _, i := range p.bySet[0] {
		kind := p.Devices[i].Kind
		if kind == Whole || strings.ContainsAny(kind, "+-") || slices.ContainsFunc(out, func(k Kind) bool { return k.Kind == kind }) {
			continue
		}
		number, _, _ := strings.Cut(kind, "g")
		units, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("profile %q does not begin with its compute slices: %w", kind, err)
		}
		most = max(most, units)
		out = append(out, Kind{Kind: kind, Units: units})
	}
	if len(p.kinds[Whole]) == 0 {
		return out, nil
	}
	out = slices.DeleteFunc(out, func(k Kind) bool { return k.Units == most })
	return append(out, Kind{Kind: Whole, Units: most}), nil
}

// Figure is a mean with half the width of its 95 % confidence interval.
type Figure struct{ Mean, Half float64 }

// NewFigure sums up repetitions that do not depend on each other, thirty or more.
func NewFigure(values []float64) Figure {
	const z = 1.96
	n, sum, squares := float64(len(values)), 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return Figure{mean, z * math.Sqrt(squares/(n-1)/n)}
}

// Row is what the rules accept of one demand at one load.
type Row struct {
	Demand string
	Load   float64
	// Accepted are the parts of the demanded units, by rule.
	Accepted []Figure
	// Behind is the published order's distance from the better of the free choosers, in the same
	// repetitions.
	Behind Figure
}

// Compare replays loads under all rules. Repetitions run at once, as many as there are processors.
func Compare(ctx context.Context, published *Pool, rules []Rule, o Options) ([]Row, error) {
	kinds, err := Kinds(published)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, demand := range []struct {
		name string
		of   Demand
	}{{"even", Even(kinds...)}, {"small", Small(kinds...)}} {
		for _, offered := range o.Loads {
			values, err := repeat(ctx, rules, demand.of, offered, kinds[len(kinds)-1].Units*len(published.sets), o)
			if err != nil {
				return nil, err
			}
			row := Row{Demand: demand.name, Load: offered}
			for _, v := range values {
				row.Accepted = append(row.Accepted, NewFigure(v))
			}
			free := len(rules) - 1
			if row.Accepted[free-1].Mean > row.Accepted[free].Mean {
				free--
			}
			behind := make([]float64, o.Seeds)
			for i := range behind {
				behind[i] = values[free][i] - values[0][i]
			}
			row.Behind = NewFigure(behind)
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// repeat gives what each rule accepts of each repetition.
func repeat(ctx context.Context, rules []Rule, demand Demand, offered float64, capacity int, o Options) ([][]float64, error) {
	values := make([][]float64, len(rules))
	for i := range values {
		values[i] = make([]float64, o.Seeds)
	}
	group, ctx := errgroup.WithContext(ctx)
	const together = 2
	group.SetLimit(together)
	for seed := range o.Seeds {
		group.Go(func() error {
			for i, rule := range rules {
				if err := ctx.Err(); err != nil {
					return err
				}
				accepted, err := Accepted(rule.Pool, rule.Chooser(demand), Load{
					Demand: demand, Offered: offered, Capacity: capacity, Requests: o.Requests, WarmUp: o.WarmUp, Seed: uint64(seed),
				})
				if err != nil {
					return err
				}
				values[i][seed] = accepted
			}
			return nil
		})
	}
	return values, group.Wait()
}

// Table shows rows as Markdown.
func Table(board string, rules []Rule, rows []Row) string {
	heads := []string{board, "offered"}
	for _, r := range rules {
		heads = append(heads, r.Name)
	}
	t := sample.NewTable(append(heads, "published behind the better free one")...)
	for _, r := range rows {
		cells := []string{r.Demand, fmt.Sprintf("%.1f", r.Load)}
		for _, f := range r.Accepted {
			cells = append(cells, fmt.Sprintf("%.4f ± %.4f", f.Mean, f.Half))
		}
		t.Add(append(cells, fmt.Sprintf("%.2f ± %.2f %%", 100*r.Behind.Mean, 100*r.Behind.Half))...)
	}
	return t.String()
}

package sample_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/bench/sample"
)

func TestPercentile(t *testing.T) {
	s := sample.Series{50, 10, 40, 20, 30}
	for p, want := range map[float64]time.Duration{0: 10, 20: 10, 21: 20, 50: 30, 99: 50, 100: 50} {
		if got := s.Percentile(p); got != want {
			t.Errorf("percentile %v of %v: %v, want %v", p, s, got, want)
		}
	}
	if got := sample.Series(nil).Percentile(50); got != 0 {
		t.Errorf("percentile of nothing: %v", got)
	}
}

// A percentile is a measured value, and as many values as it says do not exceed it.
func TestPercentileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sample.Series
		for _, v := range rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 200).Draw(t, "values") {
			s = append(s, time.Duration(v))
		}
		p := rapid.Float64Range(0, 100).Draw(t, "p")
		got := s.Percentile(p)
		if !slices.Contains(s, got) {
			t.Fatalf("%v is no value of %v", got, s)
		}
		within := 0
		for _, v := range s {
			if v <= got {
				within++
			}
		}
		if float64(within) < p/100*float64(len(s))-1e-9 {
			t.Fatalf("%d of %d values are within percentile %v", within, len(s), p)
		}
	})
}

// One busy round does not decide a figure.
func TestRounds(t *testing.T) {
	base := sample.Rounds{{10, 10, 10}, {10, 12, 10}, {100, 100, 100}}
	more := sample.Rounds{{15, 15, 15}, {14, 16, 15}, {900, 900, 900}}
	if got := more.Median(); got != 15 {
		t.Errorf("median %v, want 15", got)
	}
	if got := more.Ratio(base); got != 1.5 {
		t.Errorf("ratio %v, want 1.5", got)
	}
	if got := more.Growth(base, 5); got != 1 {
		t.Errorf("growth %v, want 1", got)
	}
	if least, most := base.Spread(); least != 10 || most != 100 {
		t.Errorf("spread %v to %v, want 10 to 100", least, most)
	}
	if got := len(more.All()); got != 9 {
		t.Errorf("%d values in all, want 9", got)
	}
	if got := more.Ratio(sample.Rounds{{0}}); got != 0 {
		t.Errorf("ratio to nothing: %v, want 0", got)
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}} {
		if got := sample.Median(tc.values); got != tc.want {
			t.Errorf("median of %v: %v, want %v", tc.values, got, tc.want)
		}
	}
}

func TestTable(t *testing.T) {
	table := sample.NewTable("what", "p50")
	table.Add("prepare", sample.Milliseconds(1500*time.Microsecond))
	table.Add("a|b")
	table.Add("ratio", sample.Times(1.25), "no column")
	want := strings.Join([]string{
		"| what    | p50    |",
		"|---------|--------|",
		"| prepare | 1.50   |",
		`| a\|b    |        |`,
		"| ratio   | 1.25 × |",
	}, "\n") + "\n"
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		sample.Microseconds(1500 * time.Nanosecond): "1.5",
		sample.Seconds(1250 * time.Millisecond):     "1.25",
		sample.MiB(3 << 19):                         "1.5",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

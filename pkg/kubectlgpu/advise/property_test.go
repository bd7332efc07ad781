package advise_test

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/advise"
)

func needs(t *rapid.T) advise.Need {
	return advise.Need{
		WeightsGB:  rapid.Float64Range(0.1, 300).Draw(t, "weights"),
		KVCacheGB:  rapid.Float64Range(0, 40).Draw(t, "KV cache"),
		OverheadGB: rapid.Float64Range(0, 2).Draw(t, "overhead"),
		Tenants:    rapid.IntRange(1, 40).Draw(t, "tenants"),
		GPU:        rapid.SampledFrom(advise.Names()).Draw(t, "GPU"),
		Isolation:  rapid.Bool().Draw(t, "isolation"),
		Steady:     rapid.Bool().Draw(t, "steady"),
		MaxStepMS:  rapid.SampledFrom([]float64{0, 5, 50}).Draw(t, "longest step"),
	}
}

// Whatever is asked: each option holds all tenants, its step is that of the formula, and the best is
// one of those that will do, with no other of fewer GPUs.
func TestEveryAnswerAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := needs(t)
		a, err := advise.Make(n)
		if err != nil {
			t.Fatal(err)
		}
		good := 0
		for _, o := range a.Options {
			if o.Refused == "" {
				good++
				if o.SpareGB < -1e-9 || o.GPUs*o.PerGPU < n.Tenants || o.GPUs < 1 {
					t.Fatalf("%d tenants in %+v", n.Tenants, o)
				}
				if n.Tenants > 1 && (n.Isolation || n.Steady) && (o.Mode == advise.MPS || o.Mode == advise.TimeSlicing) {
					t.Fatalf("tenants apart or steady: %+v", o)
				}
				if n.MaxStepMS > 0 && o.StepMS > n.MaxStepMS {
					t.Fatalf("at most %v ms: %+v", n.MaxStepMS, o)
				}
				if a.Best == nil || a.Best.GPUs > o.GPUs {
					t.Fatalf("the best is %+v, beside %+v", a.Best, o)
				}
			}
			if o.Mode == advise.Dedicated && math.Abs(o.StepMS-n.WeightsGB/a.GPU.BandwidthGBps*1000) > 1e-9 {
				t.Fatalf("a step takes %v ms", o.StepMS)
			}
			if dedicated := a.Options[0].StepMS; o.GPUs > 0 && o.StepMS < dedicated-1e-9 {
				t.Fatalf("a part is quicker than the whole: %+v, %v ms", o, dedicated)
			}
			if sum, complete := spread(o.Spread); o.GPUs > 0 && complete && sum != n.Tenants {
				t.Fatalf("%d tenants are spread as %s", n.Tenants, o.Spread)
			}
		}
		if (good == 0) != (a.Best == nil) || a.Best != nil && a.Best.Refused != "" {
			t.Fatalf("%d options will do, the best is %+v", good, a.Best)
		}
	})
}

// spread adds up "3 + 2"; it is not complete where it was cut.
func spread(text string) (sum int, complete bool) {
	for part := range strings.SplitSeq(text, " + ") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return sum, false
		}
		sum += n
	}
	return sum, true
}

// More tenants never need fewer GPUs, and half the weights never a longer step.
func TestMoreIsNeverLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := needs(t)
		less, err := advise.Make(n)
		if err != nil {
			t.Fatal(err)
		}
		n.Tenants++
		more, err := advise.Make(n)
		if err != nil {
			t.Fatal(err)
		}
		n.WeightsGB /= 2
		lighter, err := advise.Make(n)
		if err != nil {
			t.Fatal(err)
		}
		for i := range less.Options {
			if more.Options[i].GPUs < less.Options[i].GPUs {
				t.Fatalf("%d tenants on %d GPUs, one more on %d: %s", n.Tenants-1, less.Options[i].GPUs, more.Options[i].GPUs, less.Options[i].Mode)
			}
			mode := more.Options[i].Mode
			if (mode == advise.Dedicated || mode == advise.MIG) && lighter.Options[i].StepMS > more.Options[i].StepMS {
				t.Fatalf("lighter weights take longer: %+v", lighter.Options[i])
			}
		}
	})
}

// The table of partitions of the documentation, from 3 GB of weights on H100.
func TestSmallModel(t *testing.T) {
	a, err := advise.Make(advise.Need{WeightsGB: 3, Tenants: 1, GPU: "H100-80"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"1g.10gb": "6.3", "2g.20gb": "3.1", "3g.40gb": "2.1", "7g.80gb": "0.9"}
	for _, o := range a.Options {
		if w, ok := want[o.Profile]; ok {
			delete(want, o.Profile)
			if got := strconv.FormatFloat(o.StepMS, 'f', 1, 64); got != w {
				t.Errorf("%s: %s ms, want %s", o.Profile, got, w)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no options for %v", want)
	}
}

package advise_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/advise"
)

func option(t *testing.T, n advise.Need, mode advise.Mode, profile string) advise.Option {
	t.Helper()
	a, err := advise.Make(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range a.Options {
		if o.Mode == mode && o.Profile == profile {
			return o
		}
	}
	t.Fatalf("no option %s %s", mode, profile)
	return advise.Option{}
}

func need(weights float64, tenants int) advise.Need {
	return advise.Need{WeightsGB: weights, OverheadGB: 1, Tenants: tenants, GPU: "H100-80", Isolation: true}
}

// The figures that planners know: 7B in FP16, and 3 GB of weights, on H100.
func TestSteps(t *testing.T) {
	for _, tc := range []struct {
		weights float64
		tenants int
		mode    advise.Mode
		profile string
		want    string
	}{
		{14, 1, advise.Dedicated, "", "4.18"},
		{14, 3, advise.MIG, "2g.20gb", "14.63"},
		{14, 2, advise.TimeSlicing, "", "8.36"},
		{14, 3, advise.TimeSlicing, "", "12.54"},
		{14, 2, advise.MPS, "", "8.36"},
		{3, 7, advise.MIG, "1g.10gb", "6.27"},
		{3, 3, advise.MIG, "2g.20gb", "3.13"},
		{3, 2, advise.MIG, "3g.40gb", "2.09"},
		{3, 1, advise.Dedicated, "", "0.90"},
	} {
		if got := fmt.Sprintf("%.2f", option(t, need(tc.weights, tc.tenants), tc.mode, tc.profile).StepMS); got != tc.want {
			t.Errorf("%v GB, %d tenants, %s %s: %s ms, want %s", tc.weights, tc.tenants, tc.mode, tc.profile, got, tc.want)
		}
	}
}

// Five tenants of 14 GB: partitions of 20 GB, three a GPU, two GPUs.
func TestFiveTenants(t *testing.T) {
	a, err := advise.Make(need(14, 5))
	if err != nil {
		t.Fatal(err)
	}
	if a.Best == nil || a.Best.Profile != "2g.20gb" || a.Best.GPUs != 2 || a.Best.PerGPU != 3 || a.Best.Spread != "3 + 2" || a.Best.SpareGB != 5 {
		t.Errorf("best is %+v", a.Best)
	}
	if o := option(t, need(14, 5), advise.MIG, "1g.10gb"); o.Refused != "does not fit: 15 GB are needed, 5 missing" {
		t.Errorf("1g.10gb: %q", o.Refused)
	}
	loose := need(14, 5)
	loose.Isolation = false
	if a, err := advise.Make(loose); err != nil || a.Best.Mode != advise.MPS || a.Best.GPUs != 1 {
		t.Errorf("without isolation: %+v, %v", a.Best, err)
	}
	loose.MaxStepMS = 10
	if a, err := advise.Make(loose); err != nil || a.Best.Profile != "3g.40gb" || a.Best.GPUs != 3 {
		t.Errorf("within 10 ms: %+v, %v", a.Best, err)
	}
	loose.Steady = true
	if o := option(t, loose, advise.TimeSlicing, ""); o.Refused != "latency depends on what the others do" {
		t.Errorf("steady: %q", o.Refused)
	}
}

func TestTooLarge(t *testing.T) {
	a, err := advise.Make(need(140, 1))
	if err != nil || a.Best != nil {
		t.Fatalf("%+v, %v", a.Best, err)
	}
	if !strings.Contains(a.Notes[0], "needs 2 GPUs") {
		t.Errorf("notes %q", a.Notes)
	}
	small := need(14, 2)
	small.GPU = "l40s"
	if a, err := advise.Make(small); err != nil || a.Best.Mode != advise.Dedicated || !strings.Contains(strings.Join(a.Notes, " "), "no MIG") {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestWrongNeeds(t *testing.T) {
	for word, n := range map[string]advise.Need{
		"--gpu":                               {WeightsGB: 1, Tenants: 1, GPU: "Voodoo"},
		"--weights-gb":                        {Tenants: 1, GPU: "T4"},
		"NaN":                                 {WeightsGB: math.NaN(), Tenants: 1, GPU: "T4"},
		"--tenants":                           {WeightsGB: 1, GPU: "T4"},
		"1e+308":                              {WeightsGB: 1e308, Tenants: 1, GPU: "T4"},
		"+Inf":                                {WeightsGB: 1, OverheadGB: math.Inf(1), Tenants: 1, GPU: "T4"},
		"--tenants 2000000: use 1 to 1000000": {WeightsGB: 1, Tenants: 2_000_000, GPU: "T4"},
		"--kv-gb":                             {WeightsGB: 1, KVCacheGB: -1, Tenants: 1, GPU: "T4"},
		"--max-step-ms":                       {WeightsGB: 1, MaxStepMS: -1, Tenants: 1, GPU: "T4"},
	} {
		if _, err := advise.Make(n); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// Whatever is asked: everybody has a place, nobody shares a GPU with more than fit, and the best
// option is one that will do.
func TestPlaces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := advise.Need{
			WeightsGB: rapid.Float64Range(0.1, 200).Draw(rt, "weights"), KVCacheGB: rapid.Float64Range(0, 20).Draw(rt, "kv"), OverheadGB: 1,
			Tenants: rapid.IntRange(1, 60).Draw(rt, "tenants"), GPU: rapid.SampledFrom(advise.Names()).Draw(rt, "gpu"), Isolation: rapid.Bool().Draw(rt, "isolation"),
		}
		a, err := advise.Make(n)
		if err != nil {
			rt.Fatal(err)
		}
		for _, o := range a.Options {
			if o.Refused != "" {
				continue
			}
			if o.GPUs*o.PerGPU < n.Tenants || (o.GPUs-1)*o.PerGPU >= n.Tenants {
				rt.Errorf("%d tenants, %d a GPU: %d GPUs", n.Tenants, o.PerGPU, o.GPUs)
			}
			if dedicated := n.WeightsGB / a.GPU.BandwidthGBps * 1000; o.StepMS < dedicated-1e-9 {
				rt.Errorf("%s is faster than a whole GPU: %v < %v", o.Mode, o.StepMS, dedicated)
			}
		}
		if a.Best != nil && a.Best.Refused != "" {
			rt.Errorf("best is refused: %+v", a.Best)
		}
	})
}

func TestText(t *testing.T) {
	a, err := advise.Make(need(14, 5))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := a.Text(&b, true); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"5 × (14 GB weights", "recommended", "14.63", "3 + 2", "ISOLATION", `== "2g.20gb"`, "FP8", "tenants are not kept apart"} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("no %q in\n%s", w, b.String())
		}
	}
}

package claims

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
)

// sliceOf is the time slice that a plan's only device gets, "" for no configuration.
func sliceOf(t *testing.T, plan Plan) configapi.TimeSlice {
	t.Helper()
	if len(plan.Devices) != 1 {
		t.Fatalf("%d devices, want one", len(plan.Devices))
	}
	config, ok := plan.Devices[0].Config.(*configapi.GpuConfig)
	if !ok {
		return ""
	}
	if config.Sharing == nil {
		return "exclusive"
	}
	return *config.Sharing.TimeSlicingConfig.Interval
}

func TestPrecedence(t *testing.T) {
	const request, alternative = "gpu", "gpu/large"
	tests := map[string]struct {
		result  string
		configs []allocationConfig
		want    configapi.TimeSlice
	}{
		"none":                               {request, nil, ""},
		"class":                              {request, []allocationConfig{ofClass(slicing("Long"))}, "Long"},
		"later class":                        {request, []allocationConfig{ofClass(slicing("Long")), ofClass(slicing("Short"))}, "Short"},
		"claim over class":                   {request, []allocationConfig{ofClass(slicing("Long")), ofClaim(slicing("Short"))}, "Short"},
		"claim over class in any order":      {request, []allocationConfig{ofClaim(slicing("Short")), ofClass(slicing("Long"))}, "Short"},
		"unscoped claim over scoped class":   {request, []allocationConfig{ofClass(slicing("Long"), request), ofClaim(slicing("Short"))}, "Short"},
		"later claim":                        {request, []allocationConfig{ofClaim(slicing("Long")), ofClaim(slicing("Short"))}, "Short"},
		"later unscoped over earlier scoped": {request, []allocationConfig{ofClaim(slicing("Long"), request), ofClaim(slicing("Short"))}, "Short"},
		"later scoped over earlier unscoped": {request, []allocationConfig{ofClaim(slicing("Long")), ofClaim(slicing("Short"), request)}, "Short"},
		"nothing is merged":                  {request, []allocationConfig{ofClaim(slicing("Long")), ofClaim(exclusive)}, "exclusive"},
		"for another request":                {request, []allocationConfig{ofClaim(slicing("Long"), "other")}, ""},
		"for several requests":               {request, []allocationConfig{ofClaim(slicing("Long"), "other", request)}, "Long"},
		"another kind, unscoped":             {request, []allocationConfig{ofClaim(slicing("Long")), ofClaim(migMPS)}, "Long"},
		"main request":                       {alternative, []allocationConfig{ofClaim(slicing("Long"), request)}, "Long"},
		"the alternative":                    {alternative, []allocationConfig{ofClaim(slicing("Long"), alternative)}, "Long"},
		"another alternative":                {alternative, []allocationConfig{ofClaim(slicing("Long"), "gpu/small")}, ""},
		"the bare name of an alternative":    {alternative, []allocationConfig{ofClaim(slicing("Long"), "large")}, ""},
		"later main over alternative":        {alternative, []allocationConfig{ofClaim(slicing("Long"), alternative), ofClaim(slicing("Short"), request)}, "Short"},
		"main request, other kind":           {alternative, []allocationConfig{ofClass(slicing("Long")), ofClaim(migMPS, request)}, "Long"},
		"another driver's, even if unreadable": {request, []allocationConfig{
			ofClaim(slicing("Long")), opaque(resourceapi.AllocationConfigSourceClaim, "nic.example.com", "{", request),
		}, "Long"},
		"no opaque part":                     {request, []allocationConfig{ofClaim(slicing("Long")), {Source: resourceapi.AllocationConfigSourceClaim}}, "Long"},
		"an invalid one that does not apply": {request, []allocationConfig{ofClaim(misspelled, "other"), ofClaim(slicing("Long"))}, "Long"},
		"an invalid one that is overridden":  {request, []allocationConfig{ofClass(misspelled), ofClaim(slicing("Long"))}, "Long"},
		"defaults are filled in":             {request, []allocationConfig{ofClaim(strings.Replace(slicing("Long"), `"interval":"Long"`, "", 1))}, "Default"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Build(claimOf(results{got(tt.result, "gpu-3")}, tt.configs...), ourDriver, ourPool, node())
			if err != nil {
				t.Fatal(err)
			}
			if slice := sliceOf(t, plan); slice != tt.want {
				t.Errorf("time slice %q, want %q", slice, tt.want)
			}
		})
	}
}

func TestObserversKeepNoClassSharing(t *testing.T) {
	claim := claimOf(results{got("see", "gpu-3", admin), got("own", "gpu-4")}, ofClass(exclusive), ofClass(slicing("Long")))
	plan, err := Build(claim, ourDriver, ourPool, node())
	if err != nil {
		t.Fatal(err)
	}
	if s := plan.Devices[0].Config.SharingStrategy(); s != "" {
		t.Errorf("the observer's config asks for %q", s)
	}
	if s := plan.Devices[1].Config.SharingStrategy(); s != configapi.TimeSlicing {
		t.Errorf("the owner's config asks for %q", s)
	}
}

// drawConfigs makes valid configurations of the class and the claim, class first, each with its
// own thread percentage to be told apart by, 0 for the first.
func drawConfigs(t *rapid.T) []allocationConfig {
	scope := rapid.SampledFrom([][]string{nil, {"a"}, {"a/x"}, {"b"}, {"a", "b"}, {"c/y"}})
	var configs []allocationConfig
	n := rapid.IntRange(0, 12).Draw(t, "configs")
	ofClasses := rapid.IntRange(0, n).Draw(t, "of the class")
	for i := range n {
		raw, err := json.Marshal(&configapi.GpuConfig{
			TypeMeta: configapi.TypeMeta{APIVersion: configapi.APIVersion, Kind: configapi.KindGpuConfig},
			Sharing:  &configapi.GpuSharing{Strategy: configapi.MPS, MPSConfig: &configapi.MPSConfig{DefaultActiveThreadPercentage: &i}},
		})
		if err != nil {
			t.Fatal(err)
		}
		build := ofClass
		if i >= ofClasses {
			build = ofClaim
		}
		configs = append(configs, build(string(raw), scope.Draw(t, "scope")...))
	}
	return configs
}

// With valid configurations of one kind the rule is short: the last in the order class, claim
// that names nothing, the request or its main request.
func TestPrecedenceProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		configs := drawConfigs(t)
		request := rapid.SampledFrom([]string{"a", "b", "a/x", "a/y", "c/y"}).Draw(t, "request")
		want := -1
		for i, c := range configs {
			main, _, _ := strings.Cut(request, "/")
			if len(c.Requests) == 0 || slices.Contains(c.Requests, request) || slices.Contains(c.Requests, main) {
				want = i
			}
		}
		plan, err := Build(claimOf(results{got(request, "gpu-3")}, configs...), ourDriver, ourPool, node())
		if err != nil {
			t.Fatal(err)
		}
		chosen := -1
		if config, ok := plan.Devices[0].Config.(*configapi.GpuConfig); ok {
			chosen = *config.Sharing.MPSConfig.DefaultActiveThreadPercentage
		}
		if chosen != want {
			t.Errorf("request %q took configuration %d, want %d", request, chosen, want)
		}
	})
}

// What other drivers got and were told must never change what we do.
func TestForeignPartsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		configs := drawConfigs(t)
		ours := results{got("a", "gpu-1"), got("b", "mig-40-a"), got("c/y", "gpu-2", admin)}
		plain, plainErr := Build(claimOf(ours, configs...), ourDriver, ourPool, node())

		driver := rapid.SampledFrom([]string{"nic.example.com", "gpu.nvidia.com.evil", "", "GPU.nvidia.com"}).Draw(t, "driver")
		stranger := got(rapid.String().Draw(t, "request"), rapid.SampledFrom([]string{"gpu-1", "mig-40-a", ""}).Draw(t, "device"), from(driver, ourPool))
		told := opaque(resourceapi.AllocationConfigSourceClaim, driver, rapid.String().Draw(t, "parameters"))
		mixedResults := slices.Insert(slices.Clone(ours), rapid.IntRange(0, len(ours)).Draw(t, "at"), stranger)
		mixedConfigs := slices.Insert(slices.Clone(configs), rapid.IntRange(0, len(configs)).Draw(t, "config at"), told)
		mixed, mixedErr := Build(claimOf(mixedResults, mixedConfigs...), ourDriver, ourPool, node())

		if (plainErr == nil) != (mixedErr == nil) || (plainErr != nil && plainErr.Error() != mixedErr.Error()) {
			t.Fatalf("with a stranger: %v; without: %v", mixedErr, plainErr)
		}
		if diff := cmp.Diff(plain, mixed, cmp.AllowUnexported(board{})); diff != "" {
			t.Fatalf("a stranger changed the plan:\n%s", diff)
		}
	})
}

// FuzzBuild gives hostile claims: whatever is in them, there is either a plan whose devices are
// ours, or an error that says why, and never a panic.
func FuzzBuild(f *testing.F) {
	f.Add([]byte(`{}`))
	for _, claim := range []*resourceapi.ResourceClaim{
		claimOf(results{got("gpu", "gpu-1")}, ofClaim(slicing("Long"))),
		claimOf(results{got("gpu/x", "mig-40-a", admin), got("a", "gpu-2", share("s"))}, ofClass(migMPS, "gpu"), ofClaim(foreign)),
	} {
		raw, err := json.Marshal(claim.Status)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	devices := node()
	f.Fuzz(func(t *testing.T, raw []byte) {
		claim := claimOf(nil)
		if json.Unmarshal(raw, &claim.Status) != nil {
			return
		}
		plan, err := Build(claim, ourDriver, ourPool, devices)
		if err != nil {
			if err.Error() == "" || len(plan.Devices) != 0 {
				t.Fatalf("refused without a word or with a plan: %v %v", err, summary(plan))
			}
			return
		}
		for _, d := range plan.Devices {
			if d.Device == nil || devices[d.Device.Name()] != d.Device || d.Pool != ourPool {
				t.Fatalf("a device that is not ours: %+v", d)
			}
			if d.AdminAccess && d.Config != nil && d.Config.SharingStrategy() != "" {
				t.Fatalf("an observer may share: %+v", d)
			}
			if err := checkSettings(d); err != nil {
				t.Fatal(err)
			}
		}
		for i, a := range plan.Devices {
			if slices.ContainsFunc(plan.Devices[i+1:], func(b Device) bool { return excludes(a, b) || excludes(b, a) }) {
				t.Fatalf("two owners of one device: %v", summary(plan))
			}
		}
	})
}

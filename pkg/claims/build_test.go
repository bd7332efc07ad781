package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
)

type results = []resourceapi.DeviceRequestAllocationResult

// summary writes a plan so that tables stay readable: "request=device" with what is special.
func summary(plan Plan) []string {
	var lines []string
	for _, d := range plan.Devices {
		line := d.Request + "=" + d.Device.Name()
		if d.AdminAccess {
			line += " admin"
		}
		if d.ShareID != nil {
			line += " share " + string(*d.ShareID)
		}
		if d.Config != nil {
			line += " " + d.Config.ConfigKind()
		}
		lines = append(lines, line)
	}
	return lines
}

func TestBuild(t *testing.T) {
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		"one device":                {claimOf(results{got("gpu", "gpu-3")}), []string{"gpu=gpu-3"}},
		"in the order of results":   {claimOf(results{got("b", "gpu-5"), got("a", "gpu-1"), got("b", "gpu-4")}), []string{"b=gpu-5", "a=gpu-1", "b=gpu-4"}},
		"an alternative":            {claimOf(results{got("gpu/small", "mig-40-a")}), []string{"gpu/small=mig-40-a"}},
		"nothing for anybody":       {claimOf(nil), nil},
		"another driver's device":   {claimOf(results{got("nic", "gpu-0", from("nic.example.com", ourPool)), got("gpu", "gpu-0")}), []string{"gpu=gpu-0"}},
		"another node's device":     {claimOf(results{got("gpu", "gpu-0", from(ourDriver, "node-b")), got("gpu", "gpu-1")}), []string{"gpu=gpu-1"}},
		"only other drivers":        {claimOf(results{got("nic", "mig-40-a", from("nic.example.com", ourPool))}), nil},
		"a configuration":           {claimOf(results{got("gpu", "gpu-3")}, ofClaim(exclusive)), []string{"gpu=gpu-3 GpuConfig"}},
		"admin access":              {claimOf(results{got("see", "gpu-3", admin)}), []string{"see=gpu-3 admin"}},
		"admin beside the owner":    {claimOf(results{got("see", "gpu-3", admin), got("own", "gpu-3")}), []string{"see=gpu-3 admin", "own=gpu-3"}},
		"admin sees a whole and it": {claimOf(results{got("see", "gpu-40", admin), got("own", "mig-40-a")}), []string{"see=gpu-40 admin", "own=mig-40-a"}},
		"two shares of one":         {claimOf(results{got("a", "gpu-3", share("x")), got("b", "gpu-3", share("y"))}), []string{"a=gpu-3 share x", "b=gpu-3 share y"}},
		"two partitions of one":     {claimOf(results{got("a", "mig-40-a"), got("b", "mig-40-b")}), []string{"a=mig-40-a", "b=mig-40-b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Build(tt.claim, ourDriver, ourPool, node())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, summary(plan)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if want := (Ref{"team", "training", "11111111-2222-3333-4444-555555555555"}); plan.Claim != want {
				t.Errorf("the plan is for %+v", plan.Claim)
			}
		})
	}
}

func TestBuildThirtyTwoDevices(t *testing.T) {
	var all results
	for i := range 32 {
		all = append(all, got("gpu", fmt.Sprintf("gpu-%d", i)))
	}
	plan, err := Build(claimOf(all, ofClass(exclusive)), ourDriver, ourPool, node())
	if err != nil || len(plan.Devices) != 32 {
		t.Fatalf("%d devices, %v", len(plan.Devices), err)
	}
}

func TestBuildAnotherDriverName(t *testing.T) {
	claim := claimOf(results{got("gpu", "gpu-1"), got("gpu", "gpu-2", from("gpu.example.com", ourPool))},
		ofClaim(misspelled), opaque(resourceapi.AllocationConfigSourceClaim, "gpu.example.com", exclusive))
	plan, err := Build(claim, "gpu.example.com", ourPool, node())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu=gpu-2 GpuConfig"}, summary(plan)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestBuildRefuses(t *testing.T) {
	notYet := claimOf(nil)
	notYet.Status.Allocation = nil
	one := results{got("gpu", "gpu-3")}
	tests := map[string]struct {
		claim     *resourceapi.ResourceClaim
		want      Error
		permanent bool
		says      []string
	}{
		"no allocation":      {notYet, Error{Reason: ReasonNotAllocated}, false, []string{"not allocated"}},
		"a device that left": {claimOf(results{got("gpu", "gpu-77")}), Error{Reason: ReasonUnknownDevice, Request: "gpu", Device: "gpu-77"}, false, []string{`request "gpu"`, `"gpu-77"`, `"node-a"`, "gpu-0, gpu-1, gpu-10", "27 more", "delete the pod"}},
		"a misspelled field": {claimOf(one, ofClaim(misspelled)), Error{Reason: ReasonConfig, Request: "gpu", Device: "gpu-3"}, true, []string{"config of the claim", `unknown field "sharing.strategi"`}},
		"a class's mistake":  {claimOf(one, ofClass(misspelled)), Error{Reason: ReasonConfig, Request: "gpu", Device: "gpu-3"}, true, []string{"config of the DeviceClass"}},
		"a foreign kind":     {claimOf(one, ofClaim(foreign)), Error{Reason: ReasonConfig, Request: "gpu", Device: "gpu-3"}, true, []string{`"Whatever"`, `"GpuConfig"`}},
		"no parameters":      {claimOf(one, ofClaim("")), Error{Reason: ReasonConfig, Request: "gpu", Device: "gpu-3"}, true, []string{"apiVersion"}},
		"an invalid value":   {claimOf(one, ofClaim(slicing("Tiny"))), Error{Reason: ReasonConfig, Request: "gpu", Device: "gpu-3"}, true, []string{`interval: Unsupported value: "Tiny"`, `"Long"`}},
		"the wrong kind":     {claimOf(one, ofClaim(migMPS, "gpu")), Error{Reason: ReasonWrongKind, Request: "gpu", Device: "gpu-3"}, true, []string{"MigDeviceConfig", `type "mig"`, `type "gpu"`}},
		"the wrong kind of an alternative": {
			claimOf(results{got("gpu/mig", "mig-40-a")}, ofClaim(exclusive, "gpu/mig")),
			Error{Reason: ReasonWrongKind, Request: "gpu/mig", Device: "mig-40-a"},
			true,
			[]string{"GpuConfig"},
		},
		"the same device twice":   {claimOf(results{got("a", "gpu-3"), got("b", "gpu-3")}), Error{Reason: ReasonConflict, Request: "a", Device: "gpu-3"}, true, []string{`"gpu-3"`, `request "b"`, "same hardware"}},
		"a share beside a whole":  {claimOf(results{got("a", "gpu-3", share("x")), got("b", "gpu-3")}), Error{Reason: ReasonConflict, Request: "a", Device: "gpu-3"}, true, nil},
		"one share twice":         {claimOf(results{got("a", "gpu-3", share("x")), got("b", "gpu-3", share("x"))}), Error{Reason: ReasonConflict, Request: "a", Device: "gpu-3"}, true, nil},
		"a whole and its part":    {claimOf(results{got("a", "gpu-40"), got("b", "mig-40-a")}), Error{Reason: ReasonConflict, Request: "a", Device: "gpu-40"}, true, []string{`"mig-40-a"`}},
		"sharing for an observer": {claimOf(results{got("see", "gpu-3", admin)}, ofClaim(slicing("Long"))), Error{Reason: ReasonAdminSharing, Request: "see", Device: "gpu-3"}, true, []string{"adminAccess", "leave out sharing"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Build(tt.claim, ourDriver, ourPool, node())
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("plan %v, error %v; want a *claims.Error", summary(plan), err)
			}
			if e.Reason != tt.want.Reason || e.Request != tt.want.Request || e.Device != tt.want.Device {
				t.Errorf("reason %q, request %q, device %q; want %+v", e.Reason, e.Request, e.Device, tt.want)
			}
			if Permanent(err) != tt.permanent || e.Reason.Retryable() == tt.permanent {
				t.Errorf("%q: permanent is %t, want %t", e.Reason, Permanent(err), tt.permanent)
			}
			for _, part := range tt.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if len(plan.Devices) != 0 {
				t.Errorf("a refused claim has a plan: %v", summary(plan))
			}
		})
	}
}

func TestBuildSaysEverythingOnce(t *testing.T) {
	claim := claimOf(results{got("gpu", "gpu-1"), got("gpu", "gpu-2"), got("gpu", "gpu-77"), got("gpu", "gpu-78")}, ofClaim(misspelled))
	_, err := Build(claim, ourDriver, ourPool, node())
	text := err.Error()
	if strings.Count(text, "strategi") != 1 || !strings.Contains(text, "gpu-77") || !strings.Contains(text, "gpu-78") {
		t.Errorf("want one line on the config and one for each lost device:\n%s", text)
	}
	if !Permanent(err) {
		t.Error("a lost device hides that the config is wrong for ever")
	}
}

// A claim's configuration may be as long as the API server lets it, its message may not.
func TestALongConfigHasAShortMessage(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	for name, raw := range map[string]string{
		"kind": strings.Replace(foreign, "Whatever", long, 1), "field": strings.Replace(misspelled, "strategi", long, 1), "value": strings.Replace(slicing("Long"), `"Long"`, `"`+long+`"`, 1),
	} {
		_, err := Build(claimOf(results{got("gpu", "gpu-3")}, ofClaim(raw)), ourDriver, ourPool, node())
		if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "xxx…") {
			t.Errorf("%s: %.600v", name, err)
		}
	}
}

func TestUnknownDeviceNames(t *testing.T) {
	few := map[string]device.Device{"gpu-9": board{kind: device.KindGPU, bus: 9}, "gpu-1": board{kind: device.KindGPU, bus: 1}}
	for _, tt := range []struct {
		devices map[string]device.Device
		known   []string
		says    string
	}{{nil, nil, "(there are: none)"}, {few, []string{"gpu-1", "gpu-9"}, "(there are: gpu-1, gpu-9)"}} {
		_, err := Build(claimOf(results{got("gpu", "gpu-3")}), ourDriver, ourPool, tt.devices)
		var e *Error
		if !errors.As(err, &e) || !slices.Equal(e.Known, tt.known) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("with %v: %v (known %v)", tt.known, err, e.Known)
		}
	}
}

func TestPermanent(t *testing.T) {
	wrong, lost := &Error{Reason: ReasonConfig, Err: errors.New("x")}, &Error{Reason: ReasonUnknownDevice, Err: errors.New("y")}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("plain"), false},
		{wrong, true},
		{lost, false},
		{fmt.Errorf("claim: %w", wrong), true},
		{errors.Join(lost, fmt.Errorf("claim: %w", wrong)), true},
		{errors.Join(lost, lost), false},
	} {
		if Permanent(tt.err) != tt.want {
			t.Errorf("Permanent(%v) = %t", tt.err, !tt.want)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	devices := node()
	var eight, most results
	for i := range 32 {
		most = append(most, got("gpu", fmt.Sprintf("gpu-%d", i)))
	}
	eight = most[:8]
	for name, claim := range map[string]*resourceapi.ResourceClaim{
		"1 device": claimOf(most[:1]), "8 devices": claimOf(eight, ofClaim(slicing("Long"), "gpu")), "32 devices": claimOf(most, ofClass(exclusive)),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Build(claim, ourDriver, ourPool, devices); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package claims

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/pci"
)

// mpsWith is a GpuConfig with strategy MPS and these settings.
func mpsWith(settings string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{` + settings + `}}}`
}

// perDevice is that with the given limits per device, "key=value".
func perDevice(limits ...string) string {
	var pairs []string
	for _, limit := range limits {
		key, value, _ := strings.Cut(limit, "=")
		pairs = append(pairs, fmt.Sprintf("%q:%q", key, value))
	}
	return mpsWith(`"defaultPinnedDeviceMemoryLimit":"1Gi","defaultPerDevicePinnedMemoryLimit":{` + strings.Join(pairs, ",") + `}`)
}

// asking gives the claim requests of these names.
func asking(claim *resourceapi.ResourceClaim, names ...string) *resourceapi.ResourceClaim {
	for _, name := range names {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: name})
	}
	return claim
}

// served is what a daemon of whole GPUs with one limit each is told, as the i-th of them.
func served(limit int64, buses ...uint8) *MPS {
	m := &MPS{PinnedMemoryBytes: limit}
	for _, bus := range buses {
		m.Group = append(m.Group, device.Identity{PCI: pci.Address{Bus: bus}})
		m.GroupMemoryBytes = append(m.GroupMemoryBytes, limit)
	}
	return m
}

// with changes what a daemon is told.
func (m *MPS) with(percentage *int, multiUser bool) *MPS {
	m.ActiveThreadPercentage, m.MultiUser = percentage, multiUser
	return m
}

func settingsOf(t *testing.T, claim *resourceapi.ResourceClaim) []Settings {
	t.Helper()
	plan, err := Build(claim, ourDriver, ourPool, node())
	if err != nil {
		t.Fatal(err)
	}
	var out []Settings
	for _, d := range plan.Devices {
		out = append(out, d.Settings)
	}
	return out
}

func TestSettings(t *testing.T) {
	migSlicing := strings.Replace(migMPS, "MPS", "TimeSlicing", 1)
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []Settings
	}{
		"no configuration": {claimOf(results{got("gpu", "gpu-3")}), []Settings{{}}},
		"exclusive":        {claimOf(results{got("gpu", "gpu-3")}, ofClaim(exclusive)), []Settings{{}}},
		"time slicing":     {claimOf(results{got("gpu", "gpu-3"), got("b", "gpu-4")}, ofClaim(slicing("Long"), "gpu")), []Settings{{TimeSlice: "Long"}, {}}},
		"default interval": {claimOf(results{got("gpu", "gpu-3")}, ofClass(strings.Replace(slicing("Long"), `"interval":"Long"`, "", 1))), []Settings{{TimeSlice: "Default"}}},
		"slicing of MIG":   {claimOf(results{got("gpu", "mig-40-a")}, ofClaim(migSlicing)), []Settings{{}}},
		"MPS without settings": {
			claimOf(results{got("gpu", "mig-40-a")}, ofClass(migMPS)),
			[]Settings{{MPS: &MPS{Group: []device.Identity{{PCI: pci.Address{Bus: 40}, Partition: "a"}}, GroupMemoryBytes: []int64{0}}}},
		},
		"all settings": {
			claimOf(results{got("gpu", "gpu-3")}, ofClaim(mpsWith(`"defaultActiveThreadPercentage":30,"defaultPinnedDeviceMemoryLimit":"4Gi","multiUser":true`))),
			[]Settings{{MPS: served(4<<30, 3).with(new(30), true)}},
		},
		"an observer": {
			claimOf(results{got("see", "gpu-3", admin), got("own", "gpu-3")}, ofClass(mpsWith(""))),
			[]Settings{{}, {MPS: served(0, 3)}},
		},
		"two configurations": {
			claimOf(results{got("a", "gpu-1"), got("b", "gpu-2"), got("b", "gpu-3")}, ofClaim(mpsWith(`"multiUser":true`), "a"), ofClaim(mpsWith(""), "b")),
			[]Settings{{MPS: served(0, 1).with(nil, true)}, {MPS: served(0, 2, 3)}, {MPS: served(0, 2, 3)}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, settingsOf(t, tt.claim)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// Shares have the settings that the node declares: gpu-42 by MPS, gpu-43 without a daemon.
func TestSettingsOfShares(t *testing.T) {
	daemon := Settings{MPS: served(0, 42).with(new(25), true)}
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []Settings
	}{
		"by MPS":                  {claimOf(results{got("gpu", "gpu-42", share("x"))}), []Settings{daemon}},
		"two of one":              {claimOf(results{got("a", "gpu-42", share("x")), got("b", "gpu-42", share("y"))}), []Settings{daemon, daemon}},
		"an exclusive config":     {claimOf(results{got("gpu", "gpu-42", share("x"))}, ofClass(exclusive)), []Settings{daemon}},
		"no daemon":               {claimOf(results{got("gpu", "gpu-43", share("x"))}), []Settings{{}}},
		"no daemon, time slicing": {claimOf(results{got("gpu", "gpu-43", share("x"))}, ofClaim(slicing("Long"))), []Settings{{TimeSlice: "Long"}}},
		"allocated whole before":  {claimOf(results{got("gpu", "gpu-42")}), []Settings{{}}},
		"an observer":             {claimOf(results{got("gpu", "gpu-42", admin)}), []Settings{{}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, settingsOf(t, tt.claim)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsumedMemory(t *testing.T) {
	for name, want := range map[resourceapi.QualifiedName]int64{"memory": 5 << 30, "gpu.nvidia.com/memory": 5 << 30, "shares": 0} {
		result := got("gpu", "gpu-43", share("x"))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{name: resource.MustParse("5Gi")}
		plan, err := Build(claimOf(results{result}), ourDriver, ourPool, node())
		if err != nil {
			t.Fatal(err)
		}
		if have := plan.Devices[0].MemoryBytes; have != want {
			t.Errorf("%s: %d bytes, want %d", name, have, want)
		}
	}
}

func TestTimeSlicingOfPartitionsIsNoticed(t *testing.T) {
	config := ofClaim(strings.Replace(migMPS, "MPS", "TimeSlicing", 1))
	plan, err := Build(claimOf(results{got("a", "mig-40-a"), got("b", "gpu-1"), got("c", "mig-40-b", admin)}, config), ourDriver, ourPool, node())
	if err == nil {
		t.Fatal("an observer shares")
	}
	plan, err = Build(claimOf(results{got("a", "mig-40-a"), got("b", "gpu-1")}, config, ofClaim(slicing("Long"))), ourDriver, ourPool, node())
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Notices) != 1 || !strings.Contains(plan.Notices[0], `request "a"`) || !strings.Contains(plan.Notices[0], "mig-40-a") {
		t.Errorf("notices: %q", plan.Notices)
	}
	for _, d := range plan.Devices {
		if d.Claim != plan.Claim {
			t.Errorf("device %s is of claim %+v", d.Device.Name(), d.Claim)
		}
	}
}

// The limits, in Gi, of three devices: gpu-1 for request a/big, gpu-2 and gpu-3 for request b.
func TestMemoryLimits(t *testing.T) {
	const uuid2 = "GPU-00000000-0000-0000-0000-000000000002"
	tests := map[string]struct {
		limits []string
		want   [3]int64
	}{
		"the default":                   {nil, [3]int64{1, 1, 1}},
		"by index":                      {[]string{"0=2Gi", "2=3Gi"}, [3]int64{2, 1, 3}},
		"by request":                    {[]string{"b=4Gi"}, [3]int64{1, 4, 4}},
		"by alternative":                {[]string{"a/big=4Gi", "a/small=5Gi"}, [3]int64{4, 1, 1}},
		"by main request":               {[]string{"a=4Gi"}, [3]int64{4, 1, 1}},
		"alternative over main request": {[]string{"a=4Gi", "a/big=5Gi"}, [3]int64{5, 1, 1}},
		"index over request":            {[]string{"b=4Gi", "2=6Gi"}, [3]int64{1, 4, 6}},
		"by UUID":                       {[]string{uuid2 + "=7Gi"}, [3]int64{1, 7, 1}},
		"UUID over index":               {[]string{uuid2 + "=7Gi", "1=6Gi", "b=4Gi"}, [3]int64{1, 7, 4}},
		"a UUID of another node":        {[]string{"GPU-11111111-0000-0000-0000-000000000000=7Gi"}, [3]int64{1, 1, 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := asking(claimOf(results{got("a/big", "gpu-1"), got("b", "gpu-2"), got("b", "gpu-3")}, ofClaim(perDevice(tt.limits...))), "a", "b")
			var have [3]int64
			for i, s := range settingsOf(t, claim) {
				have[i] = s.MPS.PinnedMemoryBytes >> 30
			}
			if have != tt.want {
				t.Errorf("limits %v Gi, want %v", have, tt.want)
			}
		})
	}
}

func TestSettingsRefused(t *testing.T) {
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		says  []string
	}{
		"an index that no device has": {
			asking(claimOf(results{got("gpu", "gpu-3")}, ofClaim(perDevice("1=2Gi"))), "gpu"),
			[]string{`defaultPerDevicePinnedMemoryLimit[1]`, "1 devices", "0 to 0"},
		},
		"a request that the claim has not": {
			asking(claimOf(results{got("gpu", "gpu-3")}, ofClaim(perDevice("gpus=2Gi"))), "gpu", "other"),
			[]string{`[gpus]`, "no such request", "gpu, other"},
		},
		"limits on a GPU before Volta": {
			claimOf(results{got("gpu", "old-50")}, ofClaim(mpsWith(`"defaultActiveThreadPercentage":30`))),
			[]string{"old-50", "6.1", "7.0", "leave them out"},
		},
		"several users on a GPU before Volta": {
			claimOf(results{got("gpu", "old-50")}, ofClaim(mpsWith(`"multiUser":true`))), []string{"old-50", "multiUser"},
		},
		"another daemon for a share": {
			claimOf(results{got("gpu", "gpu-43", share("x"))}, ofClaim(mpsWith(""))), []string{`"MPS"`, "gpu-43", `"cooperative"`, "leave out sharing"},
		},
		"time slicing beside a daemon": {
			claimOf(results{got("gpu", "gpu-42", share("x"))}, ofClass(slicing("Long"))), []string{`"TimeSlicing"`, "gpu-42", `"mps"`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Build(tt.claim, ourDriver, ourPool, node())
			if !Permanent(err) {
				t.Fatalf("not refused for good: %v", err)
			}
			for _, part := range tt.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestMPSWithoutLimitsRunsOnOldGPUs(t *testing.T) {
	if s := settingsOf(t, claimOf(results{got("gpu", "old-50")}, ofClaim(mpsWith("")))); s[0].MPS == nil {
		t.Error("no MPS settings")
	}
}

func drawMPS(t *rapid.T) *MPS {
	m := &MPS{PinnedMemoryBytes: rapid.Int64Range(0, 2).Draw(t, "bytes"), MultiUser: rapid.Bool().Draw(t, "users")}
	if rapid.Bool().Draw(t, "limited") {
		m.ActiveThreadPercentage = new(rapid.IntRange(0, 1).Draw(t, "percentage"))
	}
	if rapid.IntRange(0, 4).Draw(t, "nil") == 0 {
		return nil
	}
	return m
}

// Equal is equality of what a daemon is told.
func TestMPSEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawMPS(t), drawMPS(t)
		want := cmp.Equal(a, b)
		if a != nil {
			a.Group = served(0, 1).Group
		}
		if a.Equal(b) != want || b.Equal(a) != want {
			t.Fatalf("%+v equal to %+v: %t", a, b, !want)
		}
	})
}

func TestSharingCheck(t *testing.T) {
	sliced := claimOf(results{got("a", "gpu-1"), got("gpu", "gpu-3")}, ofClaim(slicing("Long"), "gpu"))
	served := claimOf(results{got("gpu", "mig-40-a")}, ofClass(migMPS))
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		node  Sharing
		says  []string
	}{
		"nothing asked":           {claim: claimOf(results{got("gpu", "gpu-3")})},
		"exclusive":               {claim: claimOf(results{got("gpu", "gpu-3")}, ofClaim(exclusive))},
		"time slicing, there":     {claim: sliced, node: Sharing{TimeSlicing: true}},
		"time slicing, not there": {sliced, Sharing{MPS: true}, []string{`request "gpu"`, `"TimeSlicing"`, "leave out sharing"}},
		"MPS, there":              {claim: served, node: Sharing{MPS: true}},
		"MPS, not there":          {served, Sharing{TimeSlicing: true}, []string{`request "gpu"`, `"MPS"`, "switched off"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Build(tt.claim, ourDriver, ourPool, node())
			if err != nil {
				t.Fatal(err)
			}
			err = tt.node.Check(plan)
			if (err != nil) != (tt.says != nil) || Permanent(err) != (tt.says != nil) {
				t.Fatalf("refused: %v", err)
			}
			for _, part := range tt.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

// What is asked of a device is at most one way of sharing, and only its owner asks.
func checkSettings(d Device) error {
	asked := d.Settings != Settings{}
	switch {
	case d.ShareID != nil && device.SharingOf(d.Device) != nil:
		return nil // what the node declares
	case asked && (d.AdminAccess || d.Config == nil):
		return fmt.Errorf("nobody asked for %+v", d.Settings)
	case d.Settings.TimeSlice != "" && d.Settings.MPS != nil:
		return fmt.Errorf("two ways of sharing: %+v", d.Settings)
	case !d.AdminAccess && d.Config != nil && (d.Config.SharingStrategy() != "") != asked && d.Device.Kind() == device.KindGPU:
		return fmt.Errorf("%s asks for %q, and the settings are %+v", d.Config.ConfigKind(), d.Config.SharingStrategy(), d.Settings)
	case d.Settings.MPS != nil && d.Settings.MPS.PinnedMemoryBytes < 0:
		return fmt.Errorf("a limit of %d bytes", d.Settings.MPS.PinnedMemoryBytes)
	}
	return nil
}

package health_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
)

// readings are those of a GPU that has everything and is well.
func readings() health.Vitals {
	return health.Vitals{
		Recovery: inventory.Known(0), RemapPending: inventory.Known(false), RemapFailed: inventory.Known(false), RetirementPending: inventory.Known(false),
		Corrected: inventory.Known(uint64(3)), Uncorrected: inventory.Known(uint64(0)), LinkErrors: inventory.Known(uint64(5)),
	}
}

// linked is a GPU with links, all of them up, and a fabric that is complete.
func linked() inventory.GPU {
	return inventory.GPU{
		NVLink: inventory.NVLink{Links: []inventory.Link{{Active: true}, {Active: true}}},
		Fabric: inventory.Fabric{State: inventory.FabricCompleted, Healthy: true},
	}
}

// Each source of trouble is a condition of its own, or the driver's action, and what cannot be read is not taken for well.
func TestJudge(t *testing.T) {
	unsupported := func(what string) error { return fmt.Errorf("%s: %w", what, inventory.ErrNotSupported) }
	broken := errors.New("unknown error")
	none := health.Action{Supported: true, Read: true}
	for name, test := range map[string]struct {
		vitals func(*health.Vitals)
		gpu    func(*inventory.GPU)
		want   health.Look
	}{
		"well":                   {want: health.Look{Action: none}},
		"a recovery action":      {vitals: func(v *health.Vitals) { v.Recovery.Value = 4 }, want: health.Look{Action: health.Action{Supported: true, Read: true, Value: 4}}},
		"no such field":          {vitals: func(v *health.Vitals) { v.Recovery.Err = unsupported("field") }, want: health.Look{}},
		"a field that fails":     {vitals: func(v *health.Vitals) { v.Recovery.Err = broken }, want: health.Look{Action: health.Action{Supported: true}}},
		"rows to be replaced":    {vitals: func(v *health.Vitals) { v.RemapPending.Value = true }, want: on(health.Memory, "remap-pending", "")},
		"a row that was not":     {vitals: func(v *health.Vitals) { v.RemapFailed.Value = true }, want: on(health.Memory, "remap-failed", "")},
		"pages to be retired":    {vitals: func(v *health.Vitals) { v.RetirementPending.Value = true }, want: on(health.Memory, "retirement-pending", "")},
		"uncorrected ECC errors": {vitals: func(v *health.Vitals) { v.Uncorrected.Value = 1 }, want: on(health.Memory, "ecc-uncorrected", "")},
		"corrected ECC errors":   {vitals: func(v *health.Vitals) { v.Corrected.Value = 1 << 40 }, want: health.Look{Action: none}},
		"some errors of links":   {vitals: func(v *health.Vitals) { v.LinkErrors.Value = 1005 }, want: health.Look{Action: none}},
		"many errors of links":   {vitals: func(v *health.Vitals) { v.LinkErrors.Value = 1006 }, want: on(health.NVLink, "errors", "")},
		"boards without memory that can be replaced": {vitals: func(v *health.Vitals) {
			v.RemapPending.Err, v.RemapFailed.Err, v.RetirementPending.Err, v.Uncorrected.Err = unsupported("rows"), unsupported("rows"), unsupported("pages"), unsupported("ECC")
		}, want: health.Look{Action: none}},
		"memory that cannot be read": {vitals: func(v *health.Vitals) { v.RemapFailed.Err, v.Uncorrected.Err = broken, broken }, want: health.Look{Action: none, Blind: []health.Kind{health.Memory}}},
		"links that cannot be read":  {vitals: func(v *health.Vitals) { v.LinkErrors.Err = broken }, want: health.Look{Action: none, Blind: []health.Kind{health.NVLink}}},
		"a link that is down":        {gpu: func(g *inventory.GPU) { g.NVLink.Links[1].Active = false }, want: on(health.NVLink, "down", "1 of 2 links are up")},
		"a fabric that is late":      {gpu: func(g *inventory.GPU) { g.Fabric = inventory.Fabric{State: inventory.FabricInProgress} }, want: on(health.Fabric, string(inventory.FabricInProgress), "")},
		"a fabric that is ill":       {gpu: func(g *inventory.GPU) { g.Fabric.Healthy, g.Fabric.Reason = false, "route unhealthy" }, want: on(health.Fabric, "unhealthy", "route unhealthy")},
		"no fabric":                  {gpu: func(g *inventory.GPU) { g.Fabric = inventory.Fabric{State: inventory.FabricNotSupported} }, want: health.Look{Action: none}},
		"lost":                       {vitals: func(v *health.Vitals) { v.Err = inventory.ErrLost }, want: health.Look{Reach: health.Gone}},
		"hung":                       {vitals: func(v *health.Vitals) { v.Err = inventory.ErrHung }, want: health.Look{Reach: health.Hangs}},
		"failing":                    {vitals: func(v *health.Vitals) { v.Err = broken }, want: health.Look{Reach: health.Fails}},
	} {
		t.Run(name, func(t *testing.T) {
			v, g := readings(), linked()
			if test.vitals != nil {
				test.vitals(&v)
			}
			if test.gpu != nil {
				test.gpu(&g)
			}
			if diff := cmp.Diff(test.want, health.Judge(v, &g, 2, 5)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func on(kind health.Kind, code, detail string) health.Look {
	return health.Look{Action: health.Action{Supported: true, Read: true}, On: []health.Condition{{Kind: kind, Code: code, Detail: detail}}}
}

// Of a GPU that no scan has, links and fabric are not known, and nothing is said of them.
func TestJudgeUnscanned(t *testing.T) {
	got := health.Judge(readings(), nil, 2, 5)
	want := health.Look{Action: health.Action{Supported: true, Read: true}, Blind: []health.Kind{health.NVLink, health.Fabric}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

package health_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/health"
)

// What is over and held down does not hide what lasts, unless it is graver.
func TestWorst(t *testing.T) {
	over, lasts := health.Fault{Kind: health.Fabric, Code: "in-progress", Severity: health.Note}, health.Fault{Kind: health.Fabric, Code: "unhealthy", Severity: health.Note, On: true}
	graver := health.Fault{Kind: health.Fabric, Code: "x", Severity: health.Avoid}
	other := health.Fault{Kind: health.NVLink, Code: "down", Severity: health.Note, On: true}
	for _, c := range []struct {
		faults []health.Fault
		want   map[health.Kind]health.Fault
	}{
		{nil, map[health.Kind]health.Fault{}},
		{[]health.Fault{over}, map[health.Kind]health.Fault{health.Fabric: over}},
		{[]health.Fault{over, lasts, other}, map[health.Kind]health.Fault{health.Fabric: lasts, health.NVLink: other}},
		{[]health.Fault{lasts, over}, map[health.Kind]health.Fault{health.Fabric: lasts}},
		{[]health.Fault{graver, over, lasts}, map[health.Kind]health.Fault{health.Fabric: graver}},
	} {
		if diff := cmp.Diff(c.want, health.Verdict{Faults: c.faults}.Worst()); diff != "" {
			t.Errorf("of %v (-want +got):\n%s", c.faults, diff)
		}
	}
}

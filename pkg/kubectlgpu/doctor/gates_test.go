package doctor_test

import (
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
)

// gates are the findings about feature gates, by their severity.
func gates(r finding.Report) map[finding.Severity][]finding.Finding {
	out := map[finding.Severity][]finding.Finding{}
	for _, f := range r.Findings {
		if f.Check == "gates" {
			out[f.Severity] = append(out[f.Severity], f)
		}
	}
	return out
}

// A gate that is off is found with what is lost by it; one that the API server does not know is none:
// it is a part of the release by now, or not yet.
func TestGates(t *testing.T) {
	s := cluster(t)
	if found := gates(check(t, s)); len(found) > 0 {
		t.Errorf("nothing is known, and found: %+v", found)
	}
	s.Features = map[string]bool{
		"DynamicResourceAllocation": true, "DRAPartitionableDevices": true, "DRADeviceTaints": true, "DRAPrioritizedList": true,
		"DRAAdminAccess": true, "DRAConsumableCapacity": true, "DRAExtendedResource": true, "DRAListTypeAttributes": false, "Other": false,
	}
	if found := gates(check(t, s)); len(found[finding.OK]) != 7 || len(found) != 1 {
		t.Errorf("all is on: %+v", found)
	}
	for gate, want := range map[string]struct {
		severity finding.Severity
		lost     string
	}{
		"DynamicResourceAllocation": {finding.Error, "no claim is served"},
		"DRAPartitionableDevices":   {finding.Warning, "partitions"},
		"DRADeviceTaints":           {finding.Warning, "ill"},
		"DRAPrioritizedList":        {finding.Warning, "firstAvailable"},
		"DRAAdminAccess":            {finding.Warning, "adminAccess"},
		"DRAConsumableCapacity":     {finding.Warning, "shared"},
		"DRAExtendedResource":       {finding.Warning, "nvidia.com/gpu"},
	} {
		s.Features[gate] = false
		found := gates(check(t, s))
		bad := found[want.severity]
		if len(bad) != 1 || len(found[finding.OK]) != 6 {
			t.Errorf("%s is off: %+v", gate, found)
			continue
		}
		if f := bad[0]; f.Subject != "cluster" || !strings.Contains(f.Message, gate+" is off") || !strings.Contains(f.Why, want.lost) || !strings.Contains(f.Fix, gate) {
			t.Errorf("%s is off: %+v", gate, f)
		}
		s.Features[gate] = true
	}
}

package finding_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
)

func report() finding.Report {
	r := finding.Report{Of: "AuditReport"}
	r.Add(finding.Finding{Subject: "Pod a", Check: "qos", Severity: finding.OK, Message: "ok"})
	r.Add(finding.Finding{Subject: "Pod a", Check: "shm", Severity: finding.Warning, Message: "too small", Why: "NCCL fails", Fix: "mount 8Gi"})
	r.Add(finding.Finding{Subject: "Pod a", Check: "claim", Severity: finding.Error, Message: "not used", Why: "it sees no GPU"})
	r.Add(finding.Finding{Subject: "Pod b", Check: "qos", Severity: finding.Warning, Message: "no limit"})
	r.Add(finding.Finding{Subject: "Pod c", Check: "qos", Severity: finding.OK, Message: "ok"})
	return r
}

func TestCount(t *testing.T) {
	r := report()
	for severity, want := range map[finding.Severity]int{finding.OK: 2, finding.Warning: 2, finding.Error: 1, "unknown": 0} {
		if got := r.Count(severity); got != want {
			t.Errorf("%d findings are %s, want %d", got, severity, want)
		}
	}
	if got := (finding.Report{}).Count(finding.OK); got != 0 {
		t.Errorf("an empty report counts %d", got)
	}
	if r.Kind() != "AuditReport" {
		t.Errorf("the report is printed as %q", r.Kind())
	}
}

// Text names each subject once, leaves out what is well unless it is asked for, and counts all.
func TestText(t *testing.T) {
	for wide, want := range map[bool]string{
		false: `Pod a
  warning  shm            too small
           why: NCCL fails
           fix: mount 8Gi
  error    claim          not used
           why: it sees no GPU
Pod b
  warning  qos            no limit
5 checks: 1 errors, 2 warnings
`,
		true: `Pod a
  ok       qos            ok
  warning  shm            too small
           why: NCCL fails
           fix: mount 8Gi
  error    claim          not used
           why: it sees no GPU
Pod b
  warning  qos            no limit
Pod c
  ok       qos            ok
5 checks: 1 errors, 2 warnings
`,
	} {
		var out strings.Builder
		if err := report().Text(&out, wide); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("wide %t (-want +got):\n%s", wide, diff)
		}
	}
	var empty strings.Builder
	if err := (finding.Report{}).Text(&empty, true); err != nil || empty.String() != "0 checks: 0 errors, 0 warnings\n" {
		t.Errorf("an empty report: %q, %v", empty.String(), err)
	}
	if err := report().Text(full{}, false); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v", err)
	}
}

var errFull = errors.New("no space")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// The names in JSON are what scripts read: they stay.
func TestJSON(t *testing.T) {
	data, err := json.Marshal(report())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Findings []map[string]string `json:"findings"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"subject": "Pod a", "check": "shm", "severity": "warning", "message": "too small", "why": "NCCL fails", "fix": "mount 8Gi"}
	if diff := cmp.Diff(want, got.Findings[1]); diff != "" {
		t.Errorf("finding (-want +got):\n%s", diff)
	}
	if _, ok := got.Findings[0]["why"]; ok || len(got.Findings) != 5 {
		t.Errorf("findings: %v", got.Findings)
	}
}

package report

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/pci"
)

func verdict(severity health.Severity, code string) health.Verdict {
	if severity == health.Ignore {
		return health.Verdict{}
	}
	return health.Verdict{Faults: []health.Fault{{Kind: health.XID, Code: code, Severity: severity, Means: "it is ill", First: time.Now()}}}
}

// A GPU that falls ill, or gravely so, and one that is well again are told; what changes nothing
// for anybody is not.
func TestJudged(t *testing.T) {
	well, noted, sick, worse := verdict(health.Ignore, ""), verdict(health.Note, "13"), verdict(health.Avoid, "48"), verdict(health.Evict, "79")
	for _, c := range []struct {
		before, after health.Verdict
		want          Reason
	}{
		{well, sick, GPUSick},
		{noted, sick, GPUSick},
		{sick, worse, GPUSick},
		{well, worse, GPUSick},
		{sick, well, GPUWell},
		{worse, noted, GPUWell},
		{well, noted, ""},
		{noted, well, ""},
		{sick, sick, ""},
		{worse, sick, GPUSick},
	} {
		r, events, _ := newReporter()
		r.Judged(context.Background(), pci.Address{Bus: 1}, c.before, c.after)
		got := events.take()
		switch {
		case c.want == "" && len(got) == 0:
		case len(got) != 1 || got[0].Reason != string(c.want) || !strings.Contains(got[0].Note, "0000:01:00.0"):
			t.Errorf("from %q to %q: %+v, want %q", c.before.Reason(), c.after.Reason(), got, c.want)
		}
	}
}

func TestNoticedAndDeviceSick(t *testing.T) {
	r, events, _ := newReporter()
	r.Noticed(context.Background(), pci.Address{}, 154, health.Rule{})
	if got := events.take(); len(got) != 0 {
		t.Errorf("what is ignored is told: %+v", got)
	}
	r.Noticed(context.Background(), pci.Address{}, 13, health.Rule{Severity: health.Note, Means: "a program erred"})
	if got := events.take(); len(got) != 1 || got[0].Reason != string(GPUError) || !strings.Contains(got[0].Note, "a program erred") {
		t.Errorf("%+v", got)
	}
	r.DeviceSick(context.Background(), claims.Ref{Namespace: "ns", Name: "claim"}, []Pod{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}}, "gpu", "XID 79")
	if got := events.take(); len(got) != 3 || got[2].Reason != string(DeviceSick) || !strings.Contains(got[2].Note, "XID 79") {
		t.Errorf("%+v", got)
	}
}

// Events about two GPUs are two Events: the recorder joins those that are about the same, and keeps
// the first note alone.
func TestEventsOfGPUsAreApart(t *testing.T) {
	r, events, _ := newReporter()
	ctx, sick := context.Background(), verdict(health.Avoid, "48")
	for bus := range uint8(2) {
		at := pci.Address{Bus: bus + 1}
		r.Judged(ctx, at, health.Verdict{}, sick)
		r.Noticed(ctx, at, 13, health.Rule{Severity: health.Note})
		r.GPUReset(ctx, at, 1, nil)
		r.GPUReset(ctx, at, 2, errors.New("in use"))
	}
	seen := map[string]bool{}
	for _, path := range events.paths {
		seen[path] = true
	}
	if got := events.take(); len(got) != 8 || len(events.paths) != 8 {
		t.Errorf("%d Events, paths %q", len(got), events.paths)
	} else if !strings.Contains(got[3].Note, "reset 2 failed: in use") || got[3].Reason != string(GPUResetFailed) || got[2].Reason != string(GPUReset) {
		t.Errorf("%+v", got[2:4])
	}
	if len(seen) < 8 {
		t.Errorf("Events are joined: %q", events.paths)
	}
}

// What lasts is told once, and again when it comes back.
func TestLastingOfHealth(t *testing.T) {
	r, events, _ := newReporter()
	ctx := context.Background()
	for name, tell := range map[Reason]func(error){
		ClaimStatusRefused: func(err error) { r.ClaimStatusRefused(ctx, err) },
		KernelLogUnread:    func(err error) { r.KernelLogUnread(ctx, err) },
		GPUResetWithheld: func(err error) {
			why := map[string]string{}
			if err != nil {
				why["gpu"] = err.Error()
			}
			r.ResetWithheld(ctx, why)
		},
	} {
		for _, err := range []error{errors.New("no"), errors.New("no"), nil, errors.New("no")} {
			tell(err)
		}
		if got := events.take(); len(got) != 2 || got[0].Reason != string(name) || !strings.Contains(got[1].Note, "no") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

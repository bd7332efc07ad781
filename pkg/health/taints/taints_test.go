package taints_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/taints"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

const domain = "gpu.example.com"

func begin() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC) }

func fault(kind health.Kind, code string, s health.Severity) health.Fault {
	return health.Fault{Kind: kind, Code: code, Severity: s, First: begin(), Last: begin()}
}

func words(in []resourceapi.DeviceTaint) (out []string) {
	for _, t := range in {
		out = append(out, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return out
}

func TestTaints(t *testing.T) {
	v := health.Verdict{Faults: []health.Fault{
		fault(health.XID, "79", health.Evict), fault(health.Recovery, "reset", health.Avoid), fault(health.Lost, "", health.Evict),
		fault(health.XID, "13", health.Note), fault(health.Fabric, "in-progress", health.Note),
	}}
	for evict, want := range map[bool][]string{
		false: {
			"gpu.example.com/xid=79:NoSchedule", "gpu.example.com/gpu-lost=:NoSchedule",
			"gpu.example.com/recovery-action=reset:NoSchedule", "gpu.example.com/fabric=in-progress:None",
		},
		true: {
			"gpu.example.com/xid=79:NoExecute", "gpu.example.com/gpu-lost=:NoExecute",
			"gpu.example.com/recovery-action=reset:NoSchedule", "gpu.example.com/fabric=in-progress:None",
		},
	} {
		got := taints.Taints(v, domain, evict)
		if diff := cmp.Diff(want, words(got)); diff != "" {
			t.Errorf("evict %v (-want +got):\n%s", evict, diff)
		}
		for _, taint := range got {
			if taint.TimeAdded == nil || !taint.TimeAdded.Time.Equal(begin().Truncate(time.Second)) {
				t.Errorf("time added %v", taint.TimeAdded)
			}
		}
	}
}

// What the taints say, the kubelet is told: a device that new pods are kept from is unhealthy, and
// no other is.
func TestTaintsAndStatesAgree(t *testing.T) {
	snapshot := inventorytest.TwoIslands()
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	devices := device.FromSnapshot(snapshot, assignment)
	kinds := health.Kinds()
	rapid.Check(t, func(t *rapid.T) {
		verdicts := map[pci.Address]health.Verdict{}
		for _, d := range devices {
			var v health.Verdict
			for s := health.Evict; s > health.Ignore; s-- {
				for range rapid.IntRange(0, 2).Draw(t, "faults") {
					v.Faults = append(v.Faults, fault(rapid.SampledFrom(kinds).Draw(t, "kind"), "x", s))
				}
			}
			verdicts[d.Identity().PCI] = v
		}
		judge := taints.Judge(func(at pci.Address, _ *health.Place) health.Verdict { return verdicts[at] })
		tainter := taints.Tainter(judge, domain, rapid.Bool().Draw(t, "evict"))
		states := taints.States(devices, judge, "pool", begin())
		for i, d := range devices {
			keep := false
			for _, taint := range tainter(d) {
				keep = keep || taint.Effect != resourceapi.DeviceTaintEffectNone
			}
			if unhealthy := states[i].Health == "Unhealthy"; unhealthy != keep || states[i].DeviceName != d.Name() || states[i].PoolName != "pool" {
				t.Errorf("taints %v, state %+v", words(tainter(d)), states[i])
			}
			ready := taints.Ready(judge.Of(d))
			wanted := map[draplugin.HealthStatus]metav1.ConditionStatus{
				draplugin.HealthStatusHealthy: metav1.ConditionTrue, draplugin.HealthStatusUnhealthy: metav1.ConditionFalse, draplugin.HealthStatusUnknown: metav1.ConditionUnknown,
			}[states[i].Health]
			if ready.Status != wanted || ready.Reason == "" || len(ready.Reason) > 1024 || (states[i].Message == "") != (ready.Message == "") {
				t.Errorf("state %+v, condition %+v", states[i], ready)
			}
			if n := len(tainter(d)); n > resourceapi.DeviceTaintsMaxLength {
				t.Errorf("%d taints", n)
			}
		}
	})
}

// A partition is judged by where it is.
func TestPartitionsAreJudgedByPlace(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	assignment, _ := topology.Resolve(snapshot, topology.Memory{})
	devices := device.FromPartitionedSnapshot(snapshot, assignment, nil).Devices
	at := snapshot.GPUs[2].PCI
	ill := health.Place{Start: -1}
	name := ""
	for _, d := range devices {
		if m, ok := d.(device.MIG); ok && d.Identity().PCI == at {
			p := m.Partition()
			ill, name = health.Place{Profile: p.Profile.ID, Start: p.Placement.Start, Size: p.Placement.Size}, d.Name()
			break
		}
	}
	judge := taints.Judge(func(of pci.Address, place *health.Place) health.Verdict {
		if of == at && place != nil && *place == ill {
			return health.Verdict{Faults: []health.Fault{fault(health.XID, "94", health.Avoid)}}
		}
		return health.Verdict{}
	})
	var got []string
	for _, d := range devices {
		if len(taints.Taints(judge.Of(d), domain, false)) > 0 {
			got = append(got, d.Name())
		}
	}
	if diff := cmp.Diff([]string{name}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEveryKindIsDescribed(t *testing.T) {
	described := map[string]bool{}
	for _, d := range taints.Describe() {
		described[d.Key] = d.Means != ""
	}
	for _, kind := range health.Kinds() {
		if !described[string(kind)] {
			t.Errorf("%s is not described", kind)
		}
	}
}

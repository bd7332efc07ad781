package slices_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
	"github.com/gpu-dra/driver/pkg/slices"
	. "github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
)

// sharing is a scheduler for the machine with these devices declared as shared.
func sharing(t *testing.T, machine inventory.Snapshot, declared string) *Scheduler {
	t.Helper()
	declarations, err := shares.Parse(declared)
	if err != nil {
		t.Fatal(err)
	}
	assignment, _ := topology.Resolve(machine, topology.Memory{})
	parts := device.FromPartitionedSnapshot(machine, assignment, nil)
	devices, omissions := device.Share(parts.Devices, shares.Of(declarations, machine))
	if len(omissions) > 0 {
		t.Fatal(omissions)
	}
	return New(slices.Build(slices.Input{Devices: devices, Counters: parts.Counters, Topology: parts.Topology}).Slices, false)
}

// got asks for one claim after the other and counts what came from each GPU; "-" is a claim that
// does not fit.
func got(t *testing.T, sched *Scheduler, machine inventory.Snapshot, n int, request resourceapi.DeviceRequest) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range n {
		devices, err := sched.Allocate(t.Context(), Claim("", request))
		if err != nil {
			t.Fatal(err)
		}
		if len(devices) == 0 {
			count["-"]++
		}
		for _, d := range devices {
			for i, g := range machine.GPUs {
				if strings.HasPrefix(d, device.GPUName(g.PCI)) {
					count[string(rune('0'+i))]++
				}
			}
		}
	}
	return count
}

// Four GPUs, two of them shared by ten each: twenty small tenants and whole-GPU trainers fit as
// the admin declared, and neither gets what is the others'.
func TestTwentyTenantsAndATrainer(t *testing.T) {
	machine := inventorytest.T4()
	sched := sharing(t, machine, `[{enforcement: mps, replicas: 10, devices: {indices: [0, 1]}}]`)
	want := map[string]int{"0": 10, "1": 10, "-": 1}
	if diff := cmp.Diff(want, got(t, sched, machine, 21, Share("tenant", 1))); diff != "" {
		t.Errorf("tenants per GPU (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"2": 1, "3": 1, "-": 1}, got(t, sched, machine, 3, Request("trainer", 1))); diff != "" {
		t.Errorf("trainers per GPU (-want +got):\n%s", diff)
	}
}

func TestSharesByMemory(t *testing.T) {
	machine := inventorytest.T4() // 16 GB each
	for name, tt := range map[string]struct {
		declared string
		claims   int
		request  resourceapi.DeviceRequest
		want     map[string]int
	}{
		"2 to 4 replicas spill to a second GPU": {`[{enforcement: mps, replicas: 2}]`, 4, Share("s", 1), map[string]int{"0": 2, "1": 2}},
		"memory decides":                        {`[{enforcement: cooperative, devices: {indices: [0]}}]`, 4, Share("s", 1, "memory=5Gi"), map[string]int{"0": 3, "-": 1}},
		"without a wish all of it":              {`[{enforcement: cooperative, devices: {indices: [0]}}]`, 2, Share("s", 1), map[string]int{"0": 1, "-": 1}},
		"replicas give a part":                  {`[{enforcement: cooperative, replicas: 3, devices: {indices: [0]}}]`, 4, Share("s", 1), map[string]int{"0": 3, "-": 1}},
		"two shares at once":                    {`[{enforcement: none, replicas: 4, devices: {indices: [0]}}]`, 3, Share("s", 1, "shares=2"), map[string]int{"0": 2, "-": 1}},
		"a daemon gives equal parts only":       {`[{enforcement: mps, replicas: 4}]`, 1, Share("s", 1, "shares=2"), map[string]int{"-": 1}},
		"more memory than a part":               {`[{enforcement: mps, replicas: 4}]`, 1, Share("s", 1, "memory=8Gi"), map[string]int{"-": 1}},
		"less memory than a part is a part":     {`[{enforcement: mps, replicas: 4, devices: {indices: [0]}}]`, 5, Share("s", 1, "memory=1Gi"), map[string]int{"0": 4, "-": 1}},
		"as many as there come":                 {`[{enforcement: none, devices: {indices: [0]}}]`, 9, Share("s", 1), map[string]int{"0": 9}},
		"the file of the device plugin: eight":  {`[{enforcement: none, replicas: 4, devices: {indices: [0, 1]}}]`, 9, Share("s", 1), map[string]int{"0": 4, "1": 4, "-": 1}},
		"nothing is shared":                     {``, 1, Share("s", 1), map[string]int{"-": 1}},
		"nothing is whole":                      {`[{enforcement: none}]`, 1, Request("w", 1), map[string]int{"-": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, got(t, sharing(t, machine, tt.declared), machine, tt.claims, tt.request)); diff != "" {
				t.Errorf("shares per GPU (-want +got):\n%s", diff)
			}
		})
	}
}

// An observer takes nothing. The scheduler wants room for one share for it all the same: that is
// how Kubernetes 1.37 counts.
func TestObserversOfShares(t *testing.T) {
	machine := inventorytest.T4()
	sched := sharing(t, machine, `[{enforcement: mps, replicas: 2, devices: {indices: [0]}}]`)
	observer := Share("see", 1)
	observer.Exactly.AdminAccess = new(true)
	if diff := cmp.Diff(map[string]int{"0": 1}, got(t, sched, machine, 1, observer)); diff != "" {
		t.Errorf("first observer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"0": 2, "-": 1}, got(t, sched, machine, 3, Share("s", 1))); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"-": 1}, got(t, sched, machine, 1, observer)); diff != "" {
		t.Errorf("second observer (-want +got):\n%s", diff)
	}
}

// Shares of a partition keep the whole GPU and the partitions that overlap away, and are given
// back as one.
func TestSharesOfPartitions(t *testing.T) {
	machine := migtest.Snapshot(t, "hgx-h100-8")
	machine.GPUs = machine.GPUs[:1]
	sched := sharing(t, machine, `[{enforcement: mps, replicas: 2, devices: {profiles: [3g.40gb]}}]`)
	if diff := cmp.Diff(map[string]int{"0": 4, "-": 1}, got(t, sched, machine, 5, Share("s", 1))); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"-": 1}, got(t, sched, machine, 1, Request("w", 1))); diff != "" {
		t.Errorf("the whole GPU beside shares (-want +got):\n%s", diff)
	}
}

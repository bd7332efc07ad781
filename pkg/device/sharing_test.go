package device_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/topology"
)

// sharedGPU is a GPU with so much memory, declared as shared; nil where it was left out.
func sharedGPU(s device.Sharing, memory uint64) (device.Device, []device.Omission) {
	snapshot := inventory.Snapshot{GPUs: []inventory.GPU{{UUID: "GPU-1", MemoryBytes: memory}}}
	devices, omissions := device.Share(device.FromSnapshot(snapshot, topology.Assignment{}), func(device.Device) *device.Sharing { return &s })
	if len(devices) == 0 {
		return nil, omissions
	}
	return devices[0], omissions
}

// policyText writes a policy so that tables stay readable: "default 1Gi of 1Gi, 2Gi".
func policyText(c resourceapi.DeviceCapacity) string {
	p := c.RequestPolicy
	if p == nil {
		return "none"
	}
	text := "default " + p.Default.String()
	if r := p.ValidRange; r != nil {
		return fmt.Sprintf("%s from %s to %s by %s", text, r.Min, r.Max, r.Step)
	}
	for _, v := range p.ValidValues {
		text += " only " + v.String()
	}
	return text
}

func TestPublishShared(t *testing.T) {
	for name, tt := range map[string]struct {
		sharing        device.Sharing
		memory, shares string
	}{
		"four by MPS":           {device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 4}, "default 20Gi only 20Gi", "default 1 only 1"},
		"three by MPS":          {device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 3}, "default 27306Mi only 27306Mi", "default 1 only 1"},
		"by memory":             {device.Sharing{Enforcement: device.Cooperative}, "default 80Gi from 1Mi to 80Gi by 1Mi", "none"},
		"by the driver":         {device.Sharing{Enforcement: device.EnforcedByDriver}, "default 80Gi from 1Mi to 80Gi by 1Mi", "none"},
		"four by the driver":    {device.Sharing{Enforcement: device.EnforcedByDriver, Replicas: 4}, "default 20Gi from 1Mi to 80Gi by 1Mi", "default 1 from 1 to 4 by 1"},
		"ten by memory":         {device.Sharing{Enforcement: device.Cooperative, Replicas: 10}, "default 8Gi from 1Mi to 80Gi by 1Mi", "default 1 from 1 to 10 by 1"},
		"replicas, no limit":    {device.Sharing{Enforcement: device.NotEnforced, Replicas: 8}, "default 0 from 0 to 80Gi by 1Mi", "default 1 from 1 to 8 by 1"},
		"as many as there come": {device.Sharing{Enforcement: device.NotEnforced}, "default 0 from 0 to 80Gi by 1Mi", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			d, omissions := sharedGPU(tt.sharing, 80<<30+12345)
			if len(omissions) > 0 {
				t.Fatal(omissions)
			}
			published, omissions := d.Publish(device.VocabularyMinimal)
			if len(omissions) > 0 || published.AllowMultipleAllocations == nil || !*published.AllowMultipleAllocations {
				t.Errorf("multiple allocations: %v, omissions %v", published.AllowMultipleAllocations, omissions)
			}
			if e := published.Attributes["sharingEnforcement"].StringValue; e == nil || *e != string(tt.sharing.Enforcement) {
				t.Errorf("enforcement %v", e)
			}
			if text := policyText(published.Capacity["memory"]); text != tt.memory {
				t.Errorf("memory: %s, want %s", text, tt.memory)
			}
			if text := policyText(published.Capacity["shares"]); text != tt.shares {
				t.Errorf("shares: %s, want %s", text, tt.shares)
			}
			if value := published.Capacity["memory"].Value; value.Cmp(*resource.NewQuantity(80<<30+12345, resource.BinarySI)) != 0 {
				t.Errorf("the physical memory is published as %s", value.String())
			}
		})
	}
}

func TestAWholeDeviceSaysNothingOfShares(t *testing.T) {
	snapshot := inventory.Snapshot{GPUs: []inventory.GPU{{UUID: "GPU-1", MemoryBytes: 1 << 30}}}
	devices, _ := device.Share(device.FromSnapshot(snapshot, topology.Assignment{}), func(device.Device) *device.Sharing { return nil })
	published, _ := devices[0].Publish(device.VocabularyFull)
	if _, has := published.Attributes["sharingEnforcement"]; has || published.AllowMultipleAllocations != nil || published.Capacity["memory"].RequestPolicy != nil {
		t.Errorf("published %+v", published)
	}
	if device.SharingOf(devices[0]) != nil || device.MemoryOf(devices[0]) != 1<<30 {
		t.Error("it is shared, or has other memory")
	}
}

func TestWhatCannotBeSharedAsDeclaredIsLeftOut(t *testing.T) {
	for name, tt := range map[string]struct {
		sharing device.Sharing
		memory  uint64
		there   bool
	}{
		"limits without memory":     {device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 2}, 0, false},
		"more shares than MiB":      {device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 100}, 64 << 20, false},
		"unified memory, no limits": {device.Sharing{Enforcement: device.NotEnforced, Replicas: 2}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			d, omissions := sharedGPU(tt.sharing, tt.memory)
			if (d != nil) != tt.there || (len(omissions) == 0) != tt.there {
				t.Errorf("device %v, omissions %v", d, omissions)
			}
		})
	}
}

// The GPU driver limits whole GPUs, and of those the ones that it can.
func TestWhatTheDriverCannotLimitIsLeftOut(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	snapshot.GPUs = snapshot.GPUs[:2]
	old := snapshot.GPUs[1].PCI
	parts := device.FromPartitionedSnapshot(snapshot, topology.Assignment{}, nil).Devices
	devices, omissions := device.Share(parts, func(device.Device) *device.Sharing {
		return &device.Sharing{Enforcement: device.EnforcedByDriver}
	})
	if len(devices) != 2 || len(devices)+len(omissions) != len(parts) || !strings.Contains(omissions[0].Reason, "partitions") {
		t.Fatalf("%d devices of %d are shared, omissions %v", len(devices), len(parts), omissions)
	}
	why := func(at pci.Address) string {
		if at == old {
			return "too old"
		}
		return ""
	}
	left, omissions := device.WithoutLimits(append(devices, parts[0]), why)
	if len(left) != 2 || len(omissions) != 1 || omissions[0].Device != device.GPUName(old) || !strings.Contains(omissions[0].Reason, "too old") {
		t.Errorf("%d devices are left, omissions %v", len(left), omissions)
	}
	// Who is not held to anything by the driver needs no limits.
	others, _ := device.Share(devices, func(device.Device) *device.Sharing { return &device.Sharing{Enforcement: device.Cooperative} })
	if left, omissions := device.WithoutLimits(others, func(pci.Address) string { return "none" }); len(left) != 2 || len(omissions) != 0 {
		t.Errorf("%d devices are left, omissions %v", len(left), omissions)
	}
}

func TestMPSOnOldGPUsIsLeftOut(t *testing.T) {
	for major, there := range map[int]bool{0: true, 6: false, 7: true, 9: true} {
		snapshot := inventory.Snapshot{GPUs: []inventory.GPU{{UUID: "GPU-1", MemoryBytes: 8 << 30, ComputeMajor: major}}}
		devices, omissions := device.Share(device.FromSnapshot(snapshot, topology.Assignment{}), func(device.Device) *device.Sharing {
			return &device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 2}
		})
		if (len(devices) == 1) != there || (len(omissions) == 0) != there {
			t.Errorf("compute capability %d: %d devices, %v", major, len(devices), omissions)
		}
	}
}

// Partitions share like GPUs, and consume their counters all the same.
func TestSharedPartitions(t *testing.T) {
	snapshot := migtest.Snapshot(t, "hgx-h100-8")
	parts := device.FromPartitionedSnapshot(snapshot, topology.Assignment{}, nil)
	devices, omissions := device.Share(parts.Devices, func(d device.Device) *device.Sharing {
		if d.Kind() != device.KindMIG {
			return nil
		}
		return &device.Sharing{Enforcement: device.EnforcedByMPS, Replicas: 2}
	})
	if len(omissions) > 0 || len(devices) != len(parts.Devices) {
		t.Fatalf("%d of %d devices, %v", len(devices), len(parts.Devices), omissions)
	}
	for i, d := range devices {
		published, _ := d.Publish(device.VocabularyFull)
		plain, _ := parts.Devices[i].Publish(device.VocabularyFull)
		shared := published.AllowMultipleAllocations != nil
		if shared != (d.Kind() == device.KindMIG) || shared != (device.SharingOf(d) != nil) {
			t.Errorf("%s: shared %t", d.Name(), shared)
		}
		for name, c := range published.Capacity {
			if shared && c.RequestPolicy == nil && c.Value.Sign() > 0 {
				t.Errorf("%s: the first share takes all of %s", d.Name(), name)
			}
		}
		if diff := cmp.Diff(plain.ConsumesCounters, published.ConsumesCounters); diff != "" {
			t.Errorf("%s: counters (-whole +shared):\n%s", d.Name(), diff)
		}
	}
}

// The parts of all replicas fit, in whole MiB, and no MiB per replica is lost.
func TestPartBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		memory, replicas := rapid.Uint64Range(0, 1<<40).Draw(t, "memory"), rapid.IntRange(0, 200).Draw(t, "replicas")
		part := device.Sharing{Replicas: replicas}.PartBytes(memory)
		n := uint64(max(1, replicas))
		if part%(1<<20) != 0 || part*n > memory || (part+1<<20)*n <= memory {
			t.Fatalf("%d parts of %d bytes: %d each", n, memory, part)
		}
	})
}

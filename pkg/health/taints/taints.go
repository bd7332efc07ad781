// Package taints says in the API's words what is wrong with devices: taints for slices, states for
// the kubelet's health stream, conditions for claims. All three are made from one verdict, so they
// agree. It is pure.
package taints

import (
	"cmp"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Judge gives the verdict on a GPU, or on the GPU instance at a place of it.
type Judge func(at pci.Address, place *health.Place) health.Verdict

// Of is the verdict on a device.
func (j Judge) Of(d device.Device) health.Verdict {
	if m, ok := d.(device.MIG); ok {
		p := m.Partition()
		return j(m.Identity().PCI, &health.Place{Profile: p.Profile.ID, Start: p.Placement.Start, Size: p.Placement.Size})
	}
	return j(d.Identity().PCI, nil)
}

// Taints are those of a verdict, one for each kind of fault: the gravest, and of equal ones the
// oldest. domain is the driver's name. With evict, what is lost is evicted.
func Taints(v health.Verdict, domain string, evict bool) []resourceapi.DeviceTaint {
	worst := v.Worst()
	var out []resourceapi.DeviceTaint
	for _, kind := range health.Kinds() {
		f, ok := worst[kind]
		if !ok {
			continue
		}
		since := metav1.NewTime(f.First.UTC().Truncate(1e9))
		out = append(out, resourceapi.DeviceTaint{
			Key: domain + "/" + string(kind), Value: f.Code, Effect: effect(f.Severity, evict), TimeAdded: &since,
		})
	}
	return out
}

func effect(s health.Severity, evict bool) resourceapi.DeviceTaintEffect {
	switch {
	case s >= health.Evict && evict:
		return resourceapi.DeviceTaintEffectNoExecute
	case s >= health.Avoid:
		return resourceapi.DeviceTaintEffectNoSchedule
	}
	return resourceapi.DeviceTaintEffectNone
}

// Tainter taints devices by the verdicts on them.
func Tainter(judge Judge, domain string, evict bool) offer.Tainter {
	return func(d device.Device) []resourceapi.DeviceTaint { return Taints(judge.Of(d), domain, evict) }
}

// States are how devices are, for the kubelet.
func States(devices []device.Device, judge Judge, pool string, now time.Time) []kubeletplugin.DeviceHealth {
	status := map[health.Status]kubeletplugin.HealthStatus{
		health.Healthy: kubeletplugin.HealthStatusHealthy, health.Unhealthy: kubeletplugin.HealthStatusUnhealthy,
		health.Unknown: kubeletplugin.HealthStatusUnknown,
	}
	out := make([]kubeletplugin.DeviceHealth, 0, len(devices))
	for _, d := range devices {
		v := judge.Of(d)
		out = append(out, kubeletplugin.DeviceHealth{
			PoolName: pool, DeviceName: d.Name(), Health: status[v.Status()], LastUpdated: now, Message: v.Message(),
		})
	}
	return out
}

// ConditionReady is the type of the condition that claims have for each device.
const ConditionReady = "Ready"

// Ready is the condition of a device in the status of its claim. How often a fault came and when
// the device will return is left out: each change is a write.
func Ready(v health.Verdict) metav1.Condition {
	steady := health.Verdict{Faults: slices.Clone(v.Faults)}
	for i := range steady.Faults {
		steady.Faults[i].Count = 0
	}
	c := metav1.Condition{Type: ConditionReady, Status: metav1.ConditionTrue, Reason: cmp.Or(v.Reason(), string(health.Healthy)), Message: steady.Message()}
	switch v.Status() {
	case health.Unhealthy:
		c.Status = metav1.ConditionFalse
	case health.Unknown:
		c.Status = metav1.ConditionUnknown
	}
	return c
}

// Missing is the condition of a device that the node does not show any more.
func Missing() metav1.Condition {
	return metav1.Condition{
		Type: ConditionReady, Status: metav1.ConditionUnknown, Reason: "NotFound",
		Message: "The node does not show this device now: see the Events of the node.",
	}
}

// Taint describes a taint for the reference page.
type Taint struct {
	// Key is without the driver's name before it.
	Key          string
	Value, Means string
}

// Describe lists all taints.
func Describe() []Taint {
	return []Taint{
		{string(health.XID), "the XID", "The driver reported an error."},
		{string(health.Lost), "", "The GPU answers no more, or is not there any more while a claim still has it."},
		{string(health.Unresponsive), "", "Calls about the GPU do not return."},
		{string(health.Unmonitored), "", "The GPU serves, and its errors would go unnoticed."},
		{string(health.Recovery), "the action", "The driver asks for a recovery."},
		{string(health.Memory), "remap-pending, remap-failed, retirement-pending or ecc-uncorrected", "Something is wrong with the memory."},
		{string(health.NVLink), "down or errors", "Links are down that were up before, or count many errors."},
		{string(health.Fabric), "not-started, in-progress, unknown or unhealthy", "The registration with the NVLink fabric is not complete and well."},
	}
}

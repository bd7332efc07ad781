package chart

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
)

const gpuDriver, nicDriver = "gpu.nvidia.com", "nic.example.com"

// allocated is a claim that has a GPU of node-a, one of node-b and a device of another driver.
func allocated() *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}}
	c.Name, c.Namespace = "claim", "ns"
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: gpuDriver, Pool: "node-a", Device: "gpu-1"},
		{Request: "far", Driver: gpuDriver, Pool: "node-b", Device: "gpu-2"},
		{Request: "nic", Driver: nicDriver, Pool: "node-a", Device: "nic-1"},
	}}}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "1"}}
	return c
}

// state adds or replaces what a device is like.
func state(driver, pool, device string, ready metav1.ConditionStatus) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		s := resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: pool, Device: device, Conditions: []metav1.Condition{{Type: "Ready", Status: ready}}}
		for i, d := range c.Status.Devices {
			if d.Driver == driver && d.Pool == pool && d.Device == device {
				c.Status.Devices[i] = s
				return
			}
		}
		c.Status.Devices = append(c.Status.Devices, s)
	}
}

// Of a claim the plugin writes the state of its driver's devices on its node, and nothing else.
func TestPolicyKeepsPluginsToTheirDevices(t *testing.T) {
	me := plugin("gpu-dra-driver:gpu-dra-driver-kubelet-plugin", "node-a")
	nic := state(nicDriver, "node-a", "nic-1", metav1.ConditionTrue)
	mine := state(gpuDriver, "node-a", "gpu-1", metav1.ConditionTrue)
	type change = func(*resourcev1.ResourceClaim)
	for name, tt := range map[string]struct {
		by            user.Info
		before, after []change
		want          string
	}{
		"its device":                 {me, nil, []change{mine}, ""},
		"beside another driver's":    {me, []change{nic}, []change{nic, mine}, ""},
		"in another order":           {me, []change{nic, mine}, []change{mine, nic}, ""},
		"another state":              {me, []change{mine, nic}, []change{state(gpuDriver, "node-a", "gpu-1", metav1.ConditionFalse), nic}, ""},
		"no state":                   {me, []change{mine}, nil, ""},
		"another driver's":           {me, []change{nic}, []change{state(nicDriver, "node-a", "nic-1", metav1.ConditionFalse)}, "only write the state of devices of gpu.nvidia.com"},
		"another driver's goes":      {me, []change{nic}, nil, "only write the state of devices"},
		"another driver's is new":    {me, nil, []change{nic}, "only write the state of devices"},
		"another node's":             {me, nil, []change{state(gpuDriver, "node-b", "gpu-2", metav1.ConditionFalse)}, "only write the state of devices"},
		"the allocation":             {me, nil, []change{func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gpu-9" }}, "what a claim was allocated"},
		"no allocation":              {me, nil, []change{func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }}, "what a claim was allocated"},
		"whom it is reserved for":    {me, nil, []change{func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }}, "what a claim was allocated"},
		"a claim of another node":    {plugin("gpu-dra-driver:gpu-dra-driver-kubelet-plugin", "node-c"), nil, nil, "of claims that have devices of gpu.nvidia.com on this node"},
		"a token without a node":     {plugin("gpu-dra-driver:gpu-dra-driver-kubelet-plugin", ""), nil, []change{mine}, "on this node"},
		"a claim without a device":   {me, []change{func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} }}, []change{mine}, "of claims that have devices"},
		"the scheduler":              {&user.DefaultInfo{Name: "system:kube-scheduler"}, nil, []change{func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }}, ""},
		"another namespace's plugin": {plugin("other:gpu-dra-driver-kubelet-plugin", "node-a"), nil, []change{nic}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := allocated(), allocated()
			for _, c := range tt.before {
				c(before)
			}
			for _, c := range tt.after {
				c(after)
			}
			message := statusWritten(t, ownClaims(t), before, after, tt.by)
			if (message == "") != (tt.want == "") || !strings.Contains(message, tt.want) {
				t.Errorf("refused with %q, want %q", message, tt.want)
			}
		})
	}
}

// ownClaims compiles the policy as the chart makes it where the plugin writes states.
func ownClaims(t *testing.T) validating.Validator {
	t.Helper()
	objects := decode(t, render(t, valuesFrom("", "rbac.claimStatus=true"), reference).Manifest)
	binding := named(t, every[*admissionv1.ValidatingAdmissionPolicyBinding](objects), "-own-claims")
	policy := named(t, every[*admissionv1.ValidatingAdmissionPolicy](objects), "-own-claims")
	if binding.Spec.PolicyName != policy.Name || binding.Spec.ValidationActions[0] != admissionv1.Deny {
		t.Errorf("the binding does not enforce the policy: %+v", binding.Spec)
	}
	return compile(t, policy)
}

func statusWritten(t *testing.T, v validating.Validator, before, after *resourcev1.ResourceClaim, by user.Info) string {
	t.Helper()
	gvk, gvr := resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	attributes := admission.NewAttributesRecord(after, before, gvk, "ns", "claim", gvr, "status", admission.Update, nil, false, by)
	versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	if err != nil {
		t.Fatal(err)
	}
	for _, decision := range v.Validate(t.Context(), gvr, versioned, nil, nil, celconfig.RuntimeCELCostBudget, nil).Decisions {
		if decision.Evaluation == validating.EvalError {
			t.Fatalf("evaluating: %s", decision.Message)
		}
		if decision.Action == validating.ActionDeny {
			return decision.Message
		}
	}
	return ""
}

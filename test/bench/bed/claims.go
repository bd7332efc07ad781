package bed

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/kubelet"
)

// Namespace is where all claims are; it allows admin access.
const Namespace = "bench"

// class is the DeviceClass of whole GPUs.
const class = "gpu.nvidia.com"

// SetScene makes what claims need: the namespace and the DeviceClass.
func SetScene(ctx context.Context, client kubernetes.Interface) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace of the claims: %w", err)
	}
	dc := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`}},
	}}}
	if _, err := client.ResourceV1().DeviceClasses().Create(ctx, dc, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("device class: %w", err)
	}
	return nil
}

// Allocated makes a claim in the API server that has a device of the machine, as the scheduler would leave it. A claim with
// admin access shares the device with whoever else has it.
func (m *Machine) Allocated(ctx context.Context, name, device string, admin bool) (kubelet.Claim, error) {
	const request = "gpu"
	claims := m.Client.ResourceV1().ResourceClaims(Namespace)
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	result := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: Driver, Pool: m.Name, Device: device}
	if admin {
		exact.AdminAccess, result.AdminAccess = ptr.To(true), ptr.To(true)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: request, Exactly: exact}}
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return kubelet.Claim{}, fmt.Errorf("claim %s: %w", name, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{m.Name}},
		}}}},
	}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return kubelet.Claim{}, fmt.Errorf("allocate claim %s: %w", name, err)
	}
	return kubelet.ClaimOf(claim), nil
}

// Claims are those of one machine for a measurement.
type Claims struct {
	// Whole has one ordinary claim for each GPU.
	Whole []kubelet.Claim
	// Filling are claims with admin access.
	Filling []kubelet.Claim
}

// NewClaims makes an ordinary claim for each device, and filling claims spread over the devices.
func (m *Machine) NewClaims(ctx context.Context, slices []resourceapi.ResourceSlice, filling int) (Claims, error) {
	var c Claims
	var devices []string
	for i := range slices {
		for _, d := range slices[i].Spec.Devices {
			devices = append(devices, d.Name)
		}
	}
	for i, d := range devices {
		claim, err := m.Allocated(ctx, fmt.Sprintf("%s-whole-%d", m.Name, i), d, false)
		if err != nil {
			return c, err
		}
		c.Whole = append(c.Whole, claim)
	}
	for i := range filling {
		claim, err := m.Allocated(ctx, fmt.Sprintf("%s-admin-%d", m.Name, i), devices[i%len(devices)], true)
		if err != nil {
			return c, err
		}
		c.Filling = append(c.Filling, claim)
	}
	return c, nil
}

// Prepare has the kubelet prepare claims in one call; every one must succeed.
func (m *Machine) Prepare(ctx context.Context, claims ...kubelet.Claim) error {
	all, err := m.Kubelet.Prepare(ctx, Driver, claims...)
	if err != nil {
		return err
	}
	for uid, p := range all {
		if p.Err != nil {
			return fmt.Errorf("prepare claim %s: %w", uid, p.Err)
		}
		if len(p.Devices) == 0 {
			return fmt.Errorf("prepare claim %s: no devices", uid)
		}
	}
	return nil
}

// Unprepare has the kubelet unprepare claims in one call; every one must succeed.
func (m *Machine) Unprepare(ctx context.Context, claims ...kubelet.Claim) error {
	all, err := m.Kubelet.Unprepare(ctx, Driver, claims...)
	if err != nil {
		return err
	}
	for uid, err := range all {
		if err != nil {
			return fmt.Errorf("unprepare claim %s: %w", uid, err)
		}
	}
	return nil
}

package report

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/pci"
)

// The reasons of what happens to the health of GPUs.
const (
	GPUSick    Reason = "GPUSick"
	GPUWell    Reason = "GPUWell"
	GPUError   Reason = "GPUError"
	DeviceSick Reason = "DeviceSick"
	// ClaimStatusRefused is about what claims are told.
	ClaimStatusRefused Reason = "ClaimStatusRefused"
	// What is done about ill GPUs.
	GPUReset         Reason = "GPUReset"
	GPUResetFailed   Reason = "GPUResetFailed"
	GPUResetWithheld Reason = "GPUResetWithheld"
	// KernelLogUnread is about a source of errors.
	KernelLogUnread Reason = "KernelLogUnread"
)

func (r Reason) ofHealth() bool {
	return slices.ContainsFunc(healthDescriptions(), func(d Description) bool { return d.Reason == r })
}

func healthDescriptions() []Description {
	return []Description{
		{
			GPUSick, "Node", "A GPU has a fault, or a worse one than before; the note says which, since when and what to do.",
			"Follow the note. The GPU's taints say the same; new pods avoid it, and it returns by itself when it is well.",
		},
		{
			GPUWell, "Node", "A GPU that had a fault has none any more.", "Nothing: it is offered again.",
		},
		{
			GPUError, "Node", "The GPU driver reported an error (XID), whatever it means for the GPU.",
			"The note says what it means. See the health page for the table.",
		},
		{
			DeviceSick, "ResourceClaim, Pod", "A device of the claim, or of the pod, has a fault.",
			"What runs may have failed or may fail: look at its log, end it, and start it again elsewhere.",
		},
		{
			GPUReset, "Node", "An idle GPU whose driver asked for a reset was reset, as health.reset allows.",
			"Nothing: it is offered again when it is well. Where it happens often, the board is failing.",
		},
		{
			GPUResetFailed, "Node", "The reset of an idle GPU failed.",
			"The note has the words of nvidia-smi. It is tried three times; then drain the node and reboot it.",
		},
		{
			GPUResetWithheld, "Node", "A GPU needs a reset and is not reset by itself.",
			"The note says what is in the way: end the claim or the program that it names, or reset the GPUs that belong together by hand.",
		},
		{
			KernelLogUnread, "Node", "The kernel log cannot be read for errors of GPUs, as health.kernelLog asks for.",
			"Errors that the GPU driver's library reports are seen all the same. The note says why: a path that is wrong, or a security context without the capability SYSLOG.",
		},
		{
			ClaimStatusRefused, "Node", "The API server does not take the condition Ready of the devices in the status of claims.",
			"The note has its words: an RBAC rule that is missing, or a feature gate that is off. Pods, taints and Events say the same as the condition; to do without it, set rbac.claimStatus to false.",
		},
	}
}

// Judged tells that the verdict on a GPU changed.
func (r *Reporter) Judged(ctx context.Context, at pci.Address, before, after health.Verdict) {
	switch {
	case after.Severity() >= health.Avoid && (before.Severity() < after.Severity() || before.Reason() != after.Reason()):
		klog.FromContext(ctx).Info("GPU has a fault", "gpu", at, "severity", after.Severity(), "fault", after.Reason())
		r.ofGPU(at, corev1.EventTypeWarning, GPUSick, fmt.Sprintf("GPU %s: %s", at, after.Message()))
	case before.Severity() >= health.Avoid && after.Severity() < health.Avoid:
		klog.FromContext(ctx).Info("GPU is well again", "gpu", at)
		r.ofGPU(at, corev1.EventTypeNormal, GPUWell, fmt.Sprintf("GPU %s has no fault any more and is offered again", at))
	}
}

// ofGPU makes an Event of the node that is about one GPU.
func (r *Reporter) ofGPU(at pci.Address, kind string, reason Reason, note string) {
	r.event(r.partOfNode(at.String(), note), kind, reason, note)
}

// Noticed tells of an error that the driver reported.
func (r *Reporter) Noticed(ctx context.Context, at pci.Address, xid int, rule health.Rule) {
	klog.FromContext(ctx).Info("The GPU driver reported an error", "gpu", at, "xid", xid, "severity", rule.Severity)
	if rule.Severity > health.Ignore {
		r.ofGPU(at, corev1.EventTypeWarning, GPUError, fmt.Sprintf("GPU %s: XID %d: %s (%s)", at, xid, rule.Means, rule.Severity))
	}
}

// ClaimStatusRefused tells why the API server does not take the conditions of claims; nil ends it.
func (r *Reporter) ClaimStatusRefused(ctx context.Context, err error) {
	current := map[string]string{}
	if err != nil {
		current["claims"] = "The condition Ready of devices cannot be written into claims: " + err.Error()
	}
	r.lasting(ctx, ClaimStatusRefused, current)
}

// GPUReset tells of an attempt to reset a GPU, and why it failed.
func (r *Reporter) GPUReset(ctx context.Context, at pci.Address, attempt int, err error) {
	if err != nil {
		klog.FromContext(ctx).Error(err, "A GPU was not reset", "gpu", at, "attempt", attempt)
		r.ofGPU(at, corev1.EventTypeWarning, GPUResetFailed, fmt.Sprintf("GPU %s: reset %d failed: %v", at, attempt, err))
		return
	}
	klog.FromContext(ctx).Info("GPU was reset", "gpu", at, "attempt", attempt)
	r.ofGPU(at, corev1.EventTypeNormal, GPUReset, fmt.Sprintf("GPU %s was reset, since its driver asked for that and nobody used it", at))
}

// ResetWithheld tells, by GPU, why those that need a reset do not get one.
func (r *Reporter) ResetWithheld(ctx context.Context, why map[string]string) {
	r.lasting(ctx, GPUResetWithheld, why)
}

// KernelLogUnread tells why the kernel log cannot be read; nil ends it.
func (r *Reporter) KernelLogUnread(ctx context.Context, err error) {
	current := map[string]string{}
	if err != nil {
		current["log"] = "The kernel log is not read for errors of GPUs: " + err.Error()
	}
	r.lasting(ctx, KernelLogUnread, current)
}

// Pod names a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// DeviceSick tells a claim, and the pods that use it, that a device of theirs has a fault.
func (r *Reporter) DeviceSick(_ context.Context, claim claims.Ref, pods []Pod, device, message string) {
	note := fmt.Sprintf("Device %s: %s", device, message)
	r.event(claimObject(claim), corev1.EventTypeWarning, DeviceSick, note)
	for _, p := range pods {
		r.event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}},
			corev1.EventTypeWarning, DeviceSick, note)
	}
}

// Package audit checks pods that serve or train models for what platform engineers look at: each
// finding says why it matters and how to fix it. It is for the command audit. It is pure, and knows
// the manifest alone: no cluster.
package audit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
)

// subject is a pod with what the manifests say of its claims.
type subject struct {
	pod *manifest.Pod
	// devices is how many GPUs it asks for, tied whether a constraint keeps several of them together.
	devices int
	tied    bool
}

// check looks at one thing. The finding's message is empty when all is well.
type check struct {
	name     string
	severity finding.Severity
	why, fix string
	look     func(subject) string
}

// Run checks the pods among some objects that ask for GPUs.
func Run(objects []runtime.Object) (finding.Report, error) {
	r := finding.Report{Of: "AuditReport"}
	claims := specs(objects)
	pods := 0
	for _, o := range objects {
		for _, pod := range manifest.PodsOf(o) {
			pods++
			s := look(pod, claims)
			for _, c := range checks() {
				f := finding.Finding{Subject: pod.Subject, Check: c.name, Severity: finding.OK, Message: "ok"}
				if message := c.look(s); message != "" {
					f.Severity, f.Message, f.Why, f.Fix = c.severity, message, c.why, c.fix
				}
				r.Add(f)
			}
		}
	}
	if pods == 0 {
		return r, fmt.Errorf("no pods: the files have no pod and no workload")
	}
	return r, nil
}

// specs are the claims and templates of the files by name.
func specs(objects []runtime.Object) map[string]resourceapi.DeviceClaim {
	out := map[string]resourceapi.DeviceClaim{}
	for _, o := range objects {
		switch c := o.(type) {
		case *resourceapi.ResourceClaim:
			out[c.Name] = c.Spec.Devices
		case *resourceapi.ResourceClaimTemplate:
			out[c.Name] = c.Spec.Spec.Devices
		}
	}
	return out
}

func look(pod *manifest.Pod, claims map[string]resourceapi.DeviceClaim) subject {
	s := subject{pod: pod}
	for _, c := range pod.Spec.ResourceClaims {
		for _, name := range []*string{c.ResourceClaimName, c.ResourceClaimTemplateName} {
			if name == nil {
				continue
			}
			devices := claims[*name]
			for _, r := range devices.Requests {
				s.devices += requested(r)
			}
			s.tied = s.tied || slices.ContainsFunc(devices.Constraints, func(c resourceapi.DeviceConstraint) bool {
				return c.MatchAttribute != nil && (strings.HasSuffix(string(*c.MatchAttribute), "/nvlinkDomain") || strings.HasSuffix(string(*c.MatchAttribute), "/nvlinkCliques"))
			})
		}
	}
	for _, c := range pod.Spec.Containers {
		for name, amount := range c.Resources.Limits {
			if name == "nvidia.com/gpu" {
				s.devices += int(amount.Value())
			}
		}
	}
	return s
}

// requested is how many GPUs a request asks for at most.
func requested(r resourceapi.DeviceRequest) int {
	if r.Exactly != nil && strings.HasPrefix(r.Exactly.DeviceClassName, "mig") {
		return 1 // Partitions have no NVLink.
	}
	if r.Exactly != nil {
		return max(1, int(r.Exactly.Count))
	}
	most := 0
	for _, sub := range r.FirstAvailable {
		most = max(most, int(sub.Count), 1)
	}
	return most
}

func isGPU(name corev1.ResourceName) bool { return strings.HasPrefix(string(name), "nvidia.com/") }

// Package gather makes a support bundle of a cluster's state that can be given to others: what the
// questions about GPUs need, and nothing else. It is for the command gather, and --from reads what
// it writes. It must not read Secrets or ConfigMaps, and it takes from pods and nodes only the
// fields that it names: what it does not know is left out, not blacked out.
package gather

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// File is one file of the bundle.
type File struct {
	Name string
	Data []byte
}

// Bundle renders a state. Pods are those that have claims or ask for a resource of nvidia.com; of
// opaque configurations only those of the driver are kept.
func Bundle(s *state.State, driver, version string) ([]File, error) {
	files := []File{{Name: "about.txt", Data: about(s, driver, version)}}
	add := func(name string, objects []runtime.Object) error {
		var b bytes.Buffer
		for _, o := range objects {
			text, err := yaml.Marshal(o)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(&b, "---\n%s", text)
		}
		files = append(files, File{Name: name, Data: b.Bytes()})
		return nil
	}
	pods := wanted(s.Pods)
	for _, part := range []struct {
		name    string
		objects []runtime.Object
	}{
		{"resourceslices.yaml", each(s.Slices, slice)},
		{"deviceclasses.yaml", each(s.Classes, func(c *resourceapi.DeviceClass) runtime.Object { return class(c, driver) })},
		{"resourceclaims.yaml", each(s.Claims, func(c *resourceapi.ResourceClaim) runtime.Object { return claim(c, driver) })},
		{"resourceclaimtemplates.yaml", each(s.Templates, func(t *resourceapi.ResourceClaimTemplate) runtime.Object { return template(t, driver) })},
		{"devicetaintrules.yaml", each(s.TaintRules, rule)},
		{"pods.yaml", each(pods, pod)},
		{"nodes.yaml", each(s.Nodes, node)},
		{"events.yaml", each(concerning(s.Events, pods), event)},
	} {
		if err := add(part.name, part.objects); err != nil {
			return nil, err
		}
	}
	if gates := s.FeaturesObject(); gates != nil {
		if err := add("features.yaml", []runtime.Object{gates}); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func each[T any](all []T, make func(T) runtime.Object) []runtime.Object {
	var out []runtime.Object
	for _, one := range all {
		out = append(out, make(one))
	}
	return out
}

func about(s *state.State, driver, version string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "kubectl gpu %s, driver %s\n", version, driver)
	fmt.Fprintf(&b, "%d slices, %d classes, %d claims, %d templates, %d pods, %d nodes\n", len(s.Slices), len(s.Classes), len(s.Claims), len(s.Templates), len(s.Pods), len(s.Nodes))
	for _, u := range s.Unread {
		fmt.Fprintf(&b, "%s\n", u)
	}
	return []byte(b.String())
}

// The labels by which the chart names the driver's own pods; of these pods they are kept.
const (
	nameLabel      = "app.kubernetes.io/name"
	componentLabel = "app.kubernetes.io/component"
	chartName      = "gpu-dra-driver"
)

func isDriver(p *corev1.Pod) bool { return p.Labels[nameLabel] == chartName }

// wanted are the pods that have to do with devices, and the driver's own.
func wanted(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return !isDriver(p) && len(p.Spec.ResourceClaims) == 0 && !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(c.Resources.Limits)), func(n corev1.ResourceName) bool { return strings.HasPrefix(string(n), "nvidia.com/") })
		})
	})
}

// concerning are the events about claims and the wanted pods.
func concerning(events []*corev1.Event, pods []*corev1.Pod) []*corev1.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e *corev1.Event) bool {
		return e.InvolvedObject.Kind != "ResourceClaim" && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return p.Name == e.InvolvedObject.Name && p.Namespace == e.InvolvedObject.Namespace
		})
	})
}

// meta keeps what identifies an object. Labels and annotations are people's own texts.
func meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers,
	}
}

func kind(name string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: name}
}

func core(name string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: name} }

func slice(s *resourceapi.ResourceSlice) runtime.Object {
	return &resourceapi.ResourceSlice{TypeMeta: kind("ResourceSlice"), ObjectMeta: meta(s.ObjectMeta), Spec: s.Spec}
}

func rule(r *resourceapi.DeviceTaintRule) runtime.Object {
	return &resourceapi.DeviceTaintRule{TypeMeta: kind("DeviceTaintRule"), ObjectMeta: meta(r.ObjectMeta), Spec: r.Spec}
}

func class(c *resourceapi.DeviceClass, driver string) runtime.Object {
	out := &resourceapi.DeviceClass{TypeMeta: kind("DeviceClass"), ObjectMeta: meta(c.ObjectMeta), Spec: *c.Spec.DeepCopy()}
	for i := range out.Spec.Config {
		opaque(&out.Spec.Config[i].DeviceConfiguration, driver)
	}
	return out
}

func claim(c *resourceapi.ResourceClaim, driver string) runtime.Object {
	out := &resourceapi.ResourceClaim{TypeMeta: kind("ResourceClaim"), ObjectMeta: meta(c.ObjectMeta), Spec: *c.Spec.DeepCopy(), Status: *c.Status.DeepCopy()}
	devices(&out.Spec.Devices, driver)
	if a := out.Status.Allocation; a != nil {
		for i := range a.Devices.Config {
			opaque(&a.Devices.Config[i].DeviceConfiguration, driver)
		}
	}
	out.Status.Devices = slices.DeleteFunc(out.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool { return d.Driver != driver })
	return out
}

func template(t *resourceapi.ResourceClaimTemplate, driver string) runtime.Object {
	out := &resourceapi.ResourceClaimTemplate{TypeMeta: kind("ResourceClaimTemplate"), ObjectMeta: meta(t.ObjectMeta)}
	out.Spec.Spec = *t.Spec.Spec.DeepCopy()
	devices(&out.Spec.Spec.Devices, driver)
	return out
}

func devices(d *resourceapi.DeviceClaim, driver string) {
	for i := range d.Config {
		opaque(&d.Config[i].DeviceConfiguration, driver)
	}
}

// opaque leaves out what another driver was told: nobody here knows what is in it.
func opaque(c *resourceapi.DeviceConfiguration, driver string) {
	if c.Opaque != nil && c.Opaque.Driver != driver {
		c.Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: c.Opaque.Driver, Parameters: runtime.RawExtension{Raw: []byte("{}")}}
	}
}

func pod(p *corev1.Pod) runtime.Object {
	out := &corev1.Pod{TypeMeta: core("Pod"), ObjectMeta: meta(p.ObjectMeta)}
	out.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, NodeSelector: p.Spec.NodeSelector, Affinity: p.Spec.Affinity, Tolerations: p.Spec.Tolerations,
		ResourceClaims: p.Spec.ResourceClaims, SchedulerName: p.Spec.SchedulerName, Priority: p.Spec.Priority, PriorityClassName: p.Spec.PriorityClassName,
		InitContainers: containers(p.Spec.InitContainers), Containers: containers(p.Spec.Containers),
	}
	out.Status = corev1.PodStatus{
		Phase: p.Status.Phase, Reason: p.Status.Reason, QOSClass: p.Status.QOSClass, StartTime: p.Status.StartTime,
		ResourceClaimStatuses: p.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus,
	}
	for _, c := range p.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime, Message: scheduling(c),
		})
	}
	if isDriver(p) {
		ours(p, out)
	}
	return out
}

// ours adds what only the driver's own pods may tell: which part they are, and why their containers wait.
func ours(p, out *corev1.Pod) {
	out.Labels = map[string]string{nameLabel: chartName, componentLabel: p.Labels[componentLabel]}
	out.Status.InitContainerStatuses, out.Status.ContainerStatuses = statuses(p.Status.InitContainerStatuses), statuses(p.Status.ContainerStatuses)
}

// statuses keep how containers are. Messages may name images and registries.
func statuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, c := range all {
		kept := corev1.ContainerStatus{Name: c.Name, Ready: c.Ready, RestartCount: c.RestartCount, Started: c.Started}
		if w := c.State.Waiting; w != nil {
			kept.State.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason}
		}
		kept.State.Terminated, kept.LastTerminationState.Terminated = ended(c.State.Terminated), ended(c.LastTerminationState.Terminated)
		out = append(out, kept)
	}
	return out
}

func ended(t *corev1.ContainerStateTerminated) *corev1.ContainerStateTerminated {
	if t == nil {
		return nil
	}
	return &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, Signal: t.Signal, Reason: t.Reason, StartedAt: t.StartedAt, FinishedAt: t.FinishedAt}
}

// scheduling keeps the scheduler's own words; messages of other conditions may quote a program.
func scheduling(c corev1.PodCondition) string {
	if c.Type == corev1.PodScheduled {
		return c.Message
	}
	return ""
}

// containers keeps names and resources: not images, whose names may be confidential, and neither
// commands nor variables, which may hold passwords.
func containers(all []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range all {
		out = append(out, corev1.Container{Name: c.Name, Resources: c.Resources})
	}
	return out
}

// node keeps what scheduling needs: labels of well-known domains, taints, resources, versions.
func node(n *corev1.Node) runtime.Object {
	out := &corev1.Node{TypeMeta: core("Node"), ObjectMeta: meta(n.ObjectMeta)}
	for key, value := range n.Labels {
		if strings.Contains(key, "kubernetes.io/") || strings.HasPrefix(key, "nvidia.com/") {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[key] = value
		}
	}
	out.Spec = corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable}
	out.Status = corev1.NodeStatus{Capacity: n.Status.Capacity, Allocatable: n.Status.Allocatable, NodeInfo: corev1.NodeSystemInfo{
		KernelVersion: n.Status.NodeInfo.KernelVersion, OSImage: n.Status.NodeInfo.OSImage, ContainerRuntimeVersion: n.Status.NodeInfo.ContainerRuntimeVersion,
		KubeletVersion: n.Status.NodeInfo.KubeletVersion, Architecture: n.Status.NodeInfo.Architecture,
	}}
	return out
}

// event keeps the words of the scheduler, the kubelet and the driver about devices: others may
// quote what a program printed.
func event(e *corev1.Event) runtime.Object {
	out := &corev1.Event{
		TypeMeta: core("Event"), ObjectMeta: meta(e.ObjectMeta), Reason: e.Reason, Type: e.Type, Count: e.Count,
		FirstTimestamp: e.FirstTimestamp, LastTimestamp: e.LastTimestamp, EventTime: e.EventTime, Series: e.Series,
		InvolvedObject: corev1.ObjectReference{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name, UID: e.InvolvedObject.UID},
	}
	if e.InvolvedObject.Kind == "ResourceClaim" || slices.Contains([]string{"FailedScheduling", "FailedPrepareDynamicResources"}, e.Reason) {
		out.Message = e.Message
	}
	return out
}

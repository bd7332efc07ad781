package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
)

// maxDevices is the most devices of one claim.
const maxDevices = resourceapi.AllocationResultsMaxSize

// convertPod converts what makes pods. The template of the claim comes before it, so that applying
// the output in order works.
func (c *converter) convertPod(named metav1.Object, pod *manifest.Pod) (comments []string, changed bool) {
	p := &conversion{converter: c, spec: pod.Spec}
	p.collect()
	if len(p.requests) == 0 {
		return p.comments, false
	}
	p.selectors()
	p.leftovers()
	template := &resourceapi.ResourceClaimTemplate{
		TypeMeta: typed("ResourceClaimTemplate"), ObjectMeta: metav1.ObjectMeta{Name: c.templateName(named, pod.Role), Namespace: named.GetNamespace()},
	}
	devices := &template.Spec.Spec.Devices
	for _, r := range p.requests {
		devices.Requests = append(devices.Requests, resourceapi.DeviceRequest{Name: r.name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: r.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: r.count, Selectors: p.expressions,
		}})
	}
	note := p.nvlink(devices)
	p.spec.ResourceClaims = append(p.spec.ResourceClaims, corev1.PodResourceClaim{Name: p.claim, ResourceClaimTemplateName: &template.Name})
	c.add(template, nonEmpty("The GPUs of "+pod.Subject+".", note)...)
	return p.comments, true
}

// templateName names the claim template of what makes pods. A Job may have the name of a Deployment,
// and the template of one would be taken for the other's.
func (c *converter) templateName(o metav1.Object, role string) string {
	name := o.GetName()
	if name == "" {
		name = strings.TrimSuffix(o.GetGenerateName(), "-")
	}
	if name == "" {
		name = "pod"
	}
	if role != "" {
		name += "-" + role
	}
	const most = 200
	name = strings.TrimRight(name[:min(most, len(name))], "-.") + "-gpu"
	candidate := name
	for i := 2; c.templates[o.GetNamespace()+"/"+candidate]; i++ {
		candidate = fmt.Sprintf("%s-%d", name, i)
	}
	c.templates[o.GetNamespace()+"/"+candidate] = true
	return candidate
}

// conversion is one pod on its way.
type conversion struct {
	*converter
	spec *corev1.PodSpec
	// claim is the name of the claim in the pod.
	claim       string
	requests    []wanted
	expressions []resourceapi.DeviceSelector
	comments    []string
}

// wanted is one request of the claim.
type wanted struct {
	name, class string
	count       int64
	resource    corev1.ResourceName
}

func (p *conversion) say(format string, args ...any) {
	p.comments = append(p.comments, fmt.Sprintf(format, args...))
}

// collect takes the plugin's resources out of the containers and makes requests of them.
func (p *conversion) collect() {
	p.claim = free("gpu", func(name string) bool {
		return slices.ContainsFunc(p.spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == name })
	})
	var total int64
	containers := slices.Concat(p.spec.Containers, p.spec.InitContainers)
	for _, c := range containers {
		for name, amount := range c.Resources.Limits {
			if known(name) {
				total += amount.Value()
			}
		}
	}
	if total > maxDevices {
		p.say("No equal: a claim has at most %d devices, this pod asks for %d. It was left as it is.", maxDevices, total)
		return
	}
	for i := range p.spec.Containers {
		p.container(&p.spec.Containers[i], nil)
	}
	ordinary := slices.Clone(p.requests)
	for i := range p.spec.InitContainers {
		// The device plugin lets a container that runs before the others use their GPUs.
		p.container(&p.spec.InitContainers[i], ordinary)
	}
}

// container converts the resources of one container; it may use what others asked for before.
func (p *conversion) container(c *corev1.Container, before []wanted) {
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		amount := c.Resources.Limits[name]
		if !known(name) {
			if strings.HasPrefix(string(name), vendor) {
				p.say("No equal: container %s asks for %s, which is not known here. It was left as it is.", c.Name, name)
			}
			continue
		}
		delete(c.Resources.Limits, name)
		delete(c.Resources.Requests, name)
		if amount.Value() < 1 {
			continue
		}
		r := p.request(c, name, amount.Value(), before)
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: p.claim, Request: r})
	}
}

// request finds or makes the request that a container uses.
func (p *conversion) request(c *corev1.Container, name corev1.ResourceName, count int64, before []wanted) string {
	for _, r := range before {
		if r.resource == name && r.count >= count {
			return r.name
		}
	}
	// Names of containers are names of requests, too.
	unique := free(c.Name, func(name string) bool {
		return slices.ContainsFunc(p.requests, func(r wanted) bool { return r.name == name })
	})
	r := wanted{name: unique, class: p.classOf(name), count: count, resource: name}
	p.requests = append(p.requests, r)
	if r.class == sharedClass {
		p.say("%s becomes a request of class %s: a share, where the nodes' driver offers GPUs in shares.", name, sharedClass)
	}
	return unique
}

// free finds a name that is not taken, at most 63 long.
func free(name string, taken func(string) bool) string {
	const most = 60
	base := strings.TrimRight(name[:min(most, len(name))], "-")
	if !taken(name) && len(name) <= most {
		return name
	}
	for i := 2; ; i++ {
		if candidate := fmt.Sprintf("%s-%d", base, i); !taken(candidate) {
			return candidate
		}
	}
}

// nvlink ties several GPUs together, or says how.
func (p *conversion) nvlink(devices *resourceapi.DeviceClaim) string {
	var names []string
	var most int64
	for _, r := range p.requests {
		if r.class == gpuClass {
			names = append(names, r.name)
			most += r.count
		}
	}
	if most < 2 {
		return ""
	}
	attribute := resourceapi.FullyQualifiedName(p.Driver + "/nvlinkDomain")
	if p.NVLink {
		devices.Constraints = []resourceapi.DeviceConstraint{{Requests: names, MatchAttribute: &attribute}}
		return "The GPUs share one NVLink domain; on nodes without NVLink there is none."
	}
	return fmt.Sprintf("%d GPUs: with constraints: [{matchAttribute: %s}] they share one NVLink domain (convert --nvlink adds it).", most, attribute)
}

// leftovers tells of what the device plugin's world needs and claims do not.
func (p *conversion) leftovers() {
	if ptr.Deref(p.spec.RuntimeClassName, "") == "nvidia" {
		p.spec.RuntimeClassName = nil
		p.say("runtimeClassName nvidia was taken out: the runtime adds GPUs by CDI.")
	}
	for _, c := range slices.Concat(p.spec.Containers, p.spec.InitContainers) {
		for _, e := range c.Env {
			if e.Name == "NVIDIA_VISIBLE_DEVICES" {
				p.say("Container %s sets NVIDIA_VISIBLE_DEVICES: with the nvidia runtime it sees GPUs that nobody gave it. Take it out.", c.Name)
			}
		}
	}
}

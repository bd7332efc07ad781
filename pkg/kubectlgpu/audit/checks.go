package audit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
)

const (
	// loadSeconds is how long a model may take to load: 60 probes of 10 s.
	loadSeconds = 600
	// graceSeconds is the longest generation that is let finish.
	graceSeconds = 900
)

// checks are all checks, in the order of the report.
func checks() []check {
	return []check{
		{"gpu", finding.Warning, "a pod without a claim runs on any node and sees no GPU", "name a ResourceClaimTemplate in spec.resourceClaims, and the claim in the container's resources.claims", func(s subject) string {
			if s.devices == 0 && len(s.pod.Spec.ResourceClaims) == 0 {
				return "the pod asks for no GPU"
			}
			return ""
		}},
		{"claim-used", finding.Error, "a container gets only the devices of the claims that it names: this pod would hold GPUs that it does not see", "add resources.claims: [{name: …}] to the container", unusedClaims},
		{"one-way", finding.Error, "the same GPUs would be handed out by two drivers, or the pod would hold two sets of them", "use either a claim or the resource nvidia.com/…, not both", bothWays},
		{"qos", finding.Warning, "only Guaranteed pods with whole CPUs get cores of their own; the CFS quota stops threads that feed the GPU for up to 100 ms", "set limits equal to requests for cpu and memory in every container, and whole CPUs", qos},
		{"shm", finding.Warning, "/dev/shm has 64 MB unless told, and NCCL and data loaders fail with \"Bus error\"", "mount an emptyDir with medium: Memory and a sizeLimit of 8Gi to 16Gi at /dev/shm", shm},
		{"threads", finding.Warning, "OpenMP and MKL start one thread for each CPU of the node, not of the pod", "set OMP_NUM_THREADS and MKL_NUM_THREADS from resourceFieldRef limits.cpu", threads},
		{"startup-probe", finding.Warning, "loading a model takes minutes; without a startup probe the liveness probe kills it again and again", fmt.Sprintf("add a startupProbe that allows at least %d s: failureThreshold 60, periodSeconds 10", loadSeconds), startup},
		{"probes", finding.Warning, "readiness takes a busy pod out of the service; the same probe as liveness would restart it and lose its model", "add a readinessProbe and a livenessProbe that ask different things", probes},
		{"grace", finding.Warning, "a long generation is cut off after 30 s when the pod is moved", fmt.Sprintf("set terminationGracePeriodSeconds to the longest generation, %d or more, and a preStop hook that drains", graceSeconds), grace},
		{"toleration", finding.Warning, "GPU nodes are commonly tainted nvidia.com/gpu to keep other pods away", "tolerate key nvidia.com/gpu with operator Exists", toleration},
		{"nvlink", finding.Warning, "GPUs that do not share an NVLink domain talk over PCIe: an all-reduce takes about seven times as long", "add constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}] to the claim", func(s subject) string {
			if s.devices > 1 && !s.tied {
				return fmt.Sprintf("%d GPUs may come from different NVLink domains", s.devices)
			}
			return ""
		}},
		{"image", finding.Warning, "an image that moves makes two replicas differ, and a roll back is none", "name the image by digest: name:version@sha256:…", images},
		{"weights", finding.Warning, "weights that come over the network at each start cost minutes, times the number of pods", "mount a volume for the weights: a node-local cache (hostPath, local volume), a claim or an image volume", weights},
	}
}

// each asks a question of every container that runs along; the first answer that is not empty wins.
func each(s subject, ask func(corev1.Container) string) string {
	for _, c := range s.pod.Spec.Containers {
		if answer := ask(c); answer != "" {
			return fmt.Sprintf("container %s: %s", c.Name, answer)
		}
	}
	return ""
}

// serves tells that a container uses a GPU: only those are asked for probes and the like.
func serves(c corev1.Container) bool {
	for name := range c.Resources.Limits {
		if isGPU(name) {
			return true
		}
	}
	return len(c.Resources.Claims) > 0
}

func unusedClaims(s subject) string {
	for _, claim := range s.pod.Spec.ResourceClaims {
		if !slices.ContainsFunc(slices.Concat(s.pod.Spec.InitContainers, s.pod.Spec.Containers), func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Resources.Claims, func(r corev1.ResourceClaim) bool { return r.Name == claim.Name })
		}) {
			return fmt.Sprintf("no container names claim %s", claim.Name)
		}
	}
	return each(s, func(c corev1.Container) string {
		for _, r := range c.Resources.Claims {
			if !slices.ContainsFunc(s.pod.Spec.ResourceClaims, func(claim corev1.PodResourceClaim) bool { return claim.Name == r.Name }) {
				return fmt.Sprintf("it names claim %s, which the pod does not have", r.Name)
			}
		}
		return ""
	})
}

func bothWays(s subject) string {
	return each(s, func(c corev1.Container) string {
		for name := range c.Resources.Limits {
			if isGPU(name) && len(s.pod.Spec.ResourceClaims) > 0 {
				return fmt.Sprintf("it asks for %s beside the pod's claims", name)
			}
		}
		return ""
	})
}

func qos(s subject) string {
	return each(s, func(c corev1.Container) string {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, ok := c.Resources.Limits[name]
			if !ok {
				return fmt.Sprintf("no limit of %s", name)
			}
			// A request that is left out is the limit.
			if request, ok := c.Resources.Requests[name]; ok && request.Cmp(limit) != 0 {
				return fmt.Sprintf("%s: request %s is not the limit %s", name, request.String(), limit.String())
			}
		}
		if cpu := c.Resources.Limits[corev1.ResourceCPU]; cpu.MilliValue()%1000 != 0 {
			return fmt.Sprintf("%s CPUs are not whole ones", cpu.String())
		}
		return ""
	})
}

func shm(s subject) string {
	least := resource.MustParse("8Gi")
	for _, c := range s.pod.Spec.Containers {
		if !serves(c) {
			continue
		}
		at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.TrimRight(m.MountPath, "/") == "/dev/shm" })
		if at < 0 {
			return fmt.Sprintf("container %s: nothing is mounted at /dev/shm", c.Name)
		}
		for _, v := range s.pod.Spec.Volumes {
			switch dir := v.EmptyDir; {
			case v.Name != c.VolumeMounts[at].Name:
			case dir == nil || dir.Medium != corev1.StorageMediumMemory:
				return fmt.Sprintf("volume %s at /dev/shm is not an emptyDir of medium Memory", v.Name)
			case dir.SizeLimit == nil:
				return fmt.Sprintf("volume %s at /dev/shm has no sizeLimit: it can take all of the pod's memory", v.Name)
			case dir.SizeLimit.Cmp(least) < 0:
				return fmt.Sprintf("volume %s at /dev/shm has %s, less than %s", v.Name, dir.SizeLimit.String(), least.String())
			}
		}
	}
	return ""
}

func threads(s subject) string {
	return each(s, func(c corev1.Container) string {
		if !serves(c) {
			return ""
		}
		for _, name := range []string{"OMP_NUM_THREADS", "MKL_NUM_THREADS"} {
			at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
			if at < 0 {
				return name + " is not set"
			}
			if wrong := tooMany(c.Env[at], c.Resources.Limits.Cpu().Value()); wrong != "" {
				return wrong
			}
		}
		return ""
	})
}

// tooMany tells of a number of threads that does not come from the container's CPUs and is more than
// those; 0 CPUs are no limit. What comes from elsewhere, such as a ConfigMap, is not known here.
func tooMany(e corev1.EnvVar, cpus int64) string {
	if from := e.ValueFrom; from != nil {
		if f := from.ResourceFieldRef; f != nil && !strings.HasSuffix(f.Resource, ".cpu") {
			return fmt.Sprintf("%s comes from %s, which is no number of CPUs", e.Name, f.Resource)
		}
		return ""
	}
	n, err := strconv.ParseInt(strings.TrimSpace(e.Value), 10, 64)
	switch {
	case err != nil || n < 1:
		return fmt.Sprintf("%s is %q, which is no number of threads", e.Name, e.Value)
	case cpus > 0 && n > cpus:
		return fmt.Sprintf("%s is %d, and the container has %d CPUs", e.Name, n, cpus)
	}
	return ""
}

func startup(s subject) string {
	return each(s, func(c corev1.Container) string {
		if !serves(c) {
			return ""
		}
		p := c.StartupProbe
		if p == nil {
			return "no startup probe"
		}
		// The API server's defaults.
		period, failures := p.PeriodSeconds, p.FailureThreshold
		if period == 0 {
			period = 10
		}
		if failures == 0 {
			failures = 3
		}
		if seconds := p.InitialDelaySeconds + period*failures; seconds < loadSeconds {
			return fmt.Sprintf("the startup probe allows %d s", seconds)
		}
		return ""
	})
}

func probes(s subject) string {
	return each(s, func(c corev1.Container) string {
		switch {
		case !serves(c):
			return ""
		case c.ReadinessProbe == nil:
			return "no readiness probe"
		case c.LivenessProbe == nil:
			return "no liveness probe"
		case c.LivenessProbe.ProbeHandler.String() == c.ReadinessProbe.ProbeHandler.String():
			return "liveness and readiness ask the same"
		}
		return ""
	})
}

func grace(s subject) string {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s.pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *s.pod.Spec.TerminationGracePeriodSeconds
	}
	if seconds < graceSeconds {
		return fmt.Sprintf("the pod has %d s to end", seconds)
	}
	return each(s, func(c corev1.Container) string {
		if serves(c) && (c.Lifecycle == nil || c.Lifecycle.PreStop == nil) {
			return "no preStop hook drains it"
		}
		return ""
	})
}

func toleration(s subject) string {
	for _, t := range s.pod.Spec.Tolerations {
		if t.Key == "nvidia.com/gpu" || t.Key == "" && t.Operator == corev1.TolerationOpExists {
			return ""
		}
	}
	return "no toleration of nvidia.com/gpu"
}

func images(s subject) string {
	return each(s, func(c corev1.Container) string {
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		_, tag, tagged := strings.Cut(name, ":")
		switch {
		case strings.Contains(c.Image, "@sha256:"):
			return ""
		case !tagged || tag == "latest":
			return fmt.Sprintf("image %s is whatever is newest", c.Image)
		}
		return fmt.Sprintf("image %s has a tag, which can be moved", c.Image)
	})
}

func weights(s subject) string {
	for _, v := range s.pod.Spec.Volumes {
		if v.HostPath != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.Image != nil || v.NFS != nil {
			return ""
		}
	}
	return "no volume that could hold the weights"
}

package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// every stands for each key of a map, and each element of a list.
const every = "*"

// place is where a kind keeps a pod template, from the object's root.
type place struct {
	// role tells the templates of one object apart; that of an element has its name, too.
	role string
	path []string
	// counts are the numbers whose product is how many pods there will be.
	counts []count
}

// count is where a number is. It begins with the same elements as the template's path.
type count struct {
	path []string
	// less is a path: the number is one less where there is something.
	less []string
}

func path(dotted string) []string { return strings.Split(dotted, ".") }

func counts(dotted ...string) []count {
	var out []count
	for _, d := range dotted {
		out = append(out, count{path: path(d)})
	}
	return out
}

// places are where the kinds that run GPU work in clusters keep their pod templates, as their
// projects' CRDs have it. The version of the API does not matter.
func places(kind schema.GroupKind) []place {
	const (
		leader = "spec.leaderWorkerTemplate.leaderTemplate"
		worker = "spec.leaderWorkerTemplate.workerTemplate"
	)
	switch kind {
	case schema.GroupKind{Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet"}:
		return []place{
			{"leader", path(leader), counts("spec.replicas")},
			// The leader is one of the group; without a template of its own it is as the workers are.
			{"worker", path(worker), append(counts("spec.replicas"), count{path("spec.leaderWorkerTemplate.size"), path(leader)})},
		}
	case schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}:
		const job = "spec.replicatedJobs.*"
		return []place{{"", path(job + ".template.spec.template"), counts(job+".replicas", job+".template.spec.parallelism")}}
	case schema.GroupKind{Group: "ray.io", Kind: "RayCluster"}:
		return ray("spec")
	case schema.GroupKind{Group: "ray.io", Kind: "RayJob"}:
		return ray("spec.rayClusterSpec")
	case schema.GroupKind{Group: "ray.io", Kind: "RayService"}:
		return ray("spec.rayClusterConfig")
	case schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}:
		return []place{{"", path("spec.template"), counts("spec.replicas")}}
	case schema.GroupKind{Group: "batch.volcano.sh", Kind: "Job"}:
		return []place{{"", path("spec.tasks.*.template"), counts("spec.tasks.*.replicas")}}
	case schema.GroupKind{Group: "trainer.kubeflow.org", Kind: "ClusterTrainingRuntime"}, schema.GroupKind{Group: "trainer.kubeflow.org", Kind: "TrainingRuntime"}:
		const job = "spec.template.spec.replicatedJobs.*"
		return []place{{"", path(job + ".template.spec.template"), counts(job+".replicas", job+".template.spec.parallelism")}}
	}
	if kind.Group == "kubeflow.org" {
		// PyTorchJob has pytorchReplicaSpecs, TFJob tfReplicaSpecs, and so on.
		if framework, ok := strings.CutSuffix(kind.Kind, "Job"); ok {
			specs := "spec." + strings.ToLower(framework) + "ReplicaSpecs.*"
			return []place{{"", path(specs + ".template"), counts(specs + ".replicas")}}
		}
	}
	return nil
}

func ray(cluster string) []place {
	return []place{
		{"head", path(cluster + ".headGroupSpec.template"), nil},
		{"", path(cluster + ".workerGroupSpecs.*.template"), counts(cluster + ".workerGroupSpecs.*.replicas")},
	}
}

// foreign finds the pod templates of an object of a kind that is not Kubernetes' own.
func foreign(object *unstructured.Unstructured) []*Pod {
	var out []*Pod
	kind := object.GroupVersionKind().GroupKind()
	for _, p := range places(kind) {
		walk(object.Object, p.path, nil, func(template map[string]any, chosen []string) {
			pod := decode(template)
			pod.Role = role(object.Object, p, chosen)
			pod.Subject = strings.TrimSpace(fmt.Sprintf("%s %s %s", kind.Kind, object.GetName(), pod.Role))
			pod.Namespace = object.GetNamespace()
			pod.Replicas = p.pods(object.Object, chosen)
			out = append(out, pod)
		})
	}
	return out
}

// walk calls found for each map at a path, with the keys that stand for every.
func walk(value any, path, chosen []string, found func(map[string]any, []string)) {
	if len(path) == 0 {
		if m, ok := value.(map[string]any); ok {
			found(m, chosen)
		}
		return
	}
	for _, key := range keys(value, path[0]) {
		next := chosen
		if path[0] == every {
			next = append(slices.Clone(chosen), key)
		}
		walk(child(value, key), path[1:], next, found)
	}
}

// keys are those that a part of a path stands for.
func keys(value any, part string) []string {
	if part != every {
		return []string{part}
	}
	switch v := value.(type) {
	case map[string]any:
		return slices.Sorted(maps.Keys(v))
	case []any:
		var out []string
		for i := range v {
			out = append(out, strconv.Itoa(i))
		}
		return out
	}
	return nil
}

// child is what a map or list has under a key; nil for nothing.
func child(value any, key string) any {
	switch v := value.(type) {
	case map[string]any:
		return v[key]
	case []any:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(v) {
			return v[i]
		}
	}
	return nil
}

// at is what is at a path, whose parts every stand for the chosen keys in turn.
func at(value any, path, chosen []string) any {
	for _, part := range path {
		if part == every {
			if len(chosen) == 0 {
				return nil
			}
			part, chosen = chosen[0], chosen[1:]
		}
		value = child(value, part)
	}
	return value
}

// role is the place's, or the name of the element that the template is of.
func role(object any, p place, chosen []string) string {
	if len(chosen) == 0 {
		return p.role
	}
	element := at(object, p.path[:slices.Index(p.path, every)+1], chosen)
	for _, key := range []string{"name", "groupName"} {
		if name, ok := child(element, key).(string); ok && name != "" {
			return strings.ToLower(name)
		}
	}
	return strings.ToLower(chosen[0])
}

// pods is how many pods there will be. What is not said is 1, as it is by default in all kinds here.
func (p place) pods(object any, chosen []string) int {
	product := 1
	for _, c := range p.counts {
		n := 1
		switch number := at(object, c.path, chosen).(type) {
		case int64:
			n = int(number)
		case float64:
			n = int(number)
		}
		if c.less != nil && at(object, c.less, nil) != nil {
			n--
		}
		product *= max(n, 0)
	}
	return product
}

// decode reads a pod template. What Kubernetes does not know in it is told in Unknown.
func decode(template map[string]any) *Pod {
	spec := &corev1.PodTemplateSpec{}
	pod := &Pod{template: template}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(template, spec, true); err != nil {
		pod.Unknown = err
		// As much of it as can be read, for those who only look.
		spec = &corev1.PodTemplateSpec{}
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(template, spec)
	}
	pod.Meta, pod.Spec = &spec.ObjectMeta, &spec.Spec
	return pod
}

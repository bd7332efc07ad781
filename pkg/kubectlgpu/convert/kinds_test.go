package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/convert"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

const oneGPU = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}"

// Every kind that makes pods has its claim template, before it and in its namespace, and its pods name it.
// Nothing of the device plugin is left, and no status.
func TestKinds(t *testing.T) {
	for kind, text := range map[string]string{
		"Pod":                     "apiVersion: v1\nkind: Pod\nmetadata: {name: obj, namespace: s}\nspec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}\nstatus: {phase: Running}",
		"PodTemplate":             "apiVersion: v1\nkind: PodTemplate\nmetadata: {name: obj, namespace: s}\ntemplate: " + oneGPU,
		"ReplicationController":   "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: obj, namespace: s}\nspec: {template: " + oneGPU + "}\nstatus: {replicas: 1}",
		"Deployment":              "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: obj, namespace: s}\nspec: {selector: {matchLabels: {a: b}}, template: " + oneGPU + "}\nstatus: {replicas: 1}",
		"StatefulSet":             "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: obj, namespace: s}\nspec: {selector: {matchLabels: {a: b}}, template: " + oneGPU + "}\nstatus: {replicas: 1}",
		"DaemonSet":               "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: obj, namespace: s}\nspec: {selector: {matchLabels: {a: b}}, template: " + oneGPU + "}",
		"ReplicaSet":              "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: obj, namespace: s}\nspec: {selector: {matchLabels: {a: b}}, template: " + oneGPU + "}",
		"Job":                     "apiVersion: batch/v1\nkind: Job\nmetadata: {name: obj, namespace: s}\nspec: {template: " + oneGPU + "}\nstatus: {active: 1}",
		"CronJob":                 "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: obj, namespace: s}\nspec: {schedule: '* * * * *', jobTemplate: {spec: {template: " + oneGPU + "}}}",
		"LeaderWorkerSet":         "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: obj, namespace: s}\nspec: {leaderWorkerTemplate: {size: 2, workerTemplate: " + oneGPU + "}}",
		"JobSet":                  "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: obj, namespace: s}\nspec: {replicatedJobs: [{name: w, template: {spec: {template: " + oneGPU + "}}}]}",
		"RayCluster":              "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: obj, namespace: s}\nspec: {workerGroupSpecs: [{groupName: g, template: " + oneGPU + "}]}",
		"RayJob":                  "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: obj, namespace: s}\nspec: {rayClusterSpec: {headGroupSpec: {template: " + oneGPU + "}}}",
		"RayService":              "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: obj, namespace: s}\nspec: {rayClusterConfig: {headGroupSpec: {template: " + oneGPU + "}}}",
		"PyTorchJob":              "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: obj, namespace: s}\nspec: {pytorchReplicaSpecs: {Worker: {template: " + oneGPU + "}}}",
		"TFJob":                   "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: obj, namespace: s}\nspec: {tfReplicaSpecs: {PS: {template: " + oneGPU + "}}}",
		"Rollout":                 "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: obj, namespace: s}\nspec: {template: " + oneGPU + "}",
		"volcano Job":             "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: obj, namespace: s}\nspec: {tasks: [{name: t, template: " + oneGPU + "}]}",
		"ClusterTrainingRuntime":  "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nmetadata: {name: obj, namespace: s}\nspec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: " + oneGPU + "}}}]}}}",
		"RayCluster, in JSON too": `{"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "obj", "namespace": "s"}, "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}}}`,
	} {
		t.Run(kind, func(t *testing.T) {
			out := converted(t, text+"\n", options())
			objects, err := state.Decode([]byte(out))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if len(objects) != 2 {
				t.Fatalf("%d objects:\n%s", len(objects), out)
			}
			template, ok := objects[0].(*resourceapi.ResourceClaimTemplate)
			if !ok || template.Namespace != "s" || !strings.HasPrefix(template.Name, "obj") || !strings.HasSuffix(template.Name, "-gpu") {
				t.Fatalf("the first object is %T:\n%s", objects[0], out)
			}
			pods := manifest.PodsOf(objects[1])
			if len(pods) != 1 {
				t.Fatalf("%d pods:\n%s", len(pods), out)
			}
			spec := pods[0].Spec
			if len(spec.ResourceClaims) != 1 || *spec.ResourceClaims[0].ResourceClaimTemplateName != template.Name || len(spec.Containers[0].Resources.Claims) != 1 {
				t.Errorf("the pod's claims %+v, the container's %+v", spec.ResourceClaims, spec.Containers[0].Resources)
			}
			if strings.Contains(out, "nvidia.com/gpu: ") || strings.Contains(out, "\nstatus:") {
				t.Errorf("something is left:\n%s", out)
			}
		})
	}
}

// What has nothing to do with GPUs comes out as it was, unknown kinds and fields too, without a comment.
func TestPassedOn(t *testing.T) {
	for name, text := range map[string]string{
		"Service":          "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\nspec:\n  ports:\n  - port: 80\n",
		"unknown kind":     "apiVersion: example.com/v1\nkind: Unheard\nmetadata:\n  name: u\nspec:\n  anything:\n  - 1\n",
		"Pod without GPUs": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - image: x\n    name: c\n",
		"empty emptyDir":   "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - image: x\n    name: c\n  volumes:\n  - emptyDir: {}\n    name: v\n",
		"ConfigMap":        "apiVersion: v1\ndata:\n  a: b\nkind: ConfigMap\nmetadata:\n  name: m\n",
		"quota of CPUs":    "apiVersion: v1\nkind: ResourceQuota\nmetadata:\n  name: q\nspec:\n  hard:\n    requests.cpu: \"4\"\n",
		"GPU memory":       "apiVersion: example.com/v1\nkind: Unheard\nmetadata:\n  name: nvidia\n",
	} {
		if diff := cmp.Diff("---\n"+text, converted(t, text, options())); diff != "" {
			t.Errorf("%s (-in +out):\n%s", name, diff)
		}
	}
}

// Documents are taken from streams and lists, in their order; empty ones and comments are none.
func TestStreams(t *testing.T) {
	list := `
# A comment alone.
---
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: first}}
- {apiVersion: v1, kind: Pod, metadata: {name: second}, spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "third"}}
`
	var order []string
	documents, err := convert.Convert([]byte(list), options())
	if err != nil {
		t.Fatal(err)
	}
	out, err := convert.Render(documents)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "  name: "); ok {
			order = append(order, strings.TrimSpace(name))
		}
	}
	if diff := cmp.Diff([]string{"first", "second-gpu", "second", "third"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s\n%s", diff, out)
	}
	if out := converted(t, "", options()); out != "" {
		t.Errorf("nothing becomes %q", out)
	}
}

// Names that cannot be used as they are: none, generated ones, long ones, doubled ones.
func TestNames(t *testing.T) {
	long := strings.Repeat("long-name-", 7) // 70 characters, as no container may have
	pod := func(metadata, containers string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: " + metadata + "\nspec: {containers: [" + containers + "]}\n"
	}
	container := func(name, resources string) string {
		return fmt.Sprintf("{name: %s, image: x, resources: {limits: {%s}}}", name, resources)
	}
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"no name":          {pod("{}", container("c", "nvidia.com/gpu: 1")), []string{"name: pod-gpu"}},
		"generated":        {pod("{generateName: train-}", container("c", "nvidia.com/gpu: 1")), []string{"name: train-gpu"}},
		"a very long name": {pod("{name: "+strings.Repeat("a", 240)+"}", container("c", "nvidia.com/gpu: 1")), []string{"name: " + strings.Repeat("a", 200) + "-gpu"}},
		"a long container": {pod("{name: p}", container(long, "nvidia.com/gpu: 1")), []string{"name: " + strings.TrimRight(long[:60], "-") + "-2"}},
		"two resources of a container": {
			pod("{name: p}", container("c", "nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 2")), []string{"name: c\n", "name: c-2", "request: c\n", "request: c-2", "count: 2"},
		},
		"a container named like another's request": {
			pod("{name: p}", container("c", "nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 2")+","+container("c-2", "nvidia.com/gpu: 1")), []string{"request: c-2-2"},
		},
	} {
		out := converted(t, tc.text, options())
		for _, w := range tc.want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", name, w, out)
			}
		}
	}
}

// configMap is one with a configuration of the device plugin or of mig-parted.
func configMap(text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nvidia-plugin-configs}\ndata:\n  any: |\n    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
}

// Configurations of the device plugin and of mig-parted, whole and odd ones.
func TestConfigurations(t *testing.T) {
	for name, tc := range map[string]struct{ text, want, not string }{
		"time slicing": {
			configMap("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"),
			"nvidia.com/gpu shared in 4 by TimeSlicing", "No equal",
		},
		"a name without its domain": {
			configMap("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"), "nvidia.com/gpu shared in 4", "No equal",
		},
		"MPS divides threads": {
			configMap("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"), "defaultActiveThreadPercentage: 33", "No equal",
		},
		"MPS of many": {
			configMap("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 400}]}}"), "defaultActiveThreadPercentage: 1", "No equal",
		},
		"a partition": {
			configMap("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}"), "kind: MigDeviceConfig", "No equal",
		},
		"no more than one": {
			configMap("version: v1\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}"), "failRequestsGreaterThanOne: not needed", "No equal",
		},
		"an unknown resource": {
			configMap("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/pgpu, replicas: 2}]}}"), `No equal: ConfigMap nvidia-plugin-configs, any shares "nvidia.com/pgpu" in 2`, "kind: DeviceClass",
		},
		"no replicas": {
			configMap("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}"), `shares "nvidia.com/gpu" in 0`, "kind: DeviceClass",
		},
		"a strategy alone":  {configMap("version: v1\nflags: {migStrategy: mixed}"), "migStrategy mixed has no equal and needs none", "kind: DeviceClass"},
		"nothing of ours":   {configMap("version: v1\nflags: {}"), "kind: ConfigMap", "#"},
		"another version":   {configMap("version: v2\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"), "kind: ConfigMap", "#"},
		"no YAML":           {configMap("a: [b"), "kind: ConfigMap", "#"},
		"layouts":           {configMap("version: v1\nmig-configs: {all: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]}"), "name: mig-1g-10gb", "No equal"},
		"layouts, all off":  {configMap("version: v1\nmig-configs: {whole: [{devices: all, mig-enabled: false}]}"), "layouts whole.", "kind: DeviceClass"},
		"layouts, wrong":    {configMap("version: v1\nmig-configs: {all: [{devices: all}]}"), "No equal: ConfigMap nvidia-plugin-configs, any: MIG layouts", "kind: DeviceClass"},
		"a bare file":       {"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 2}\n", "the file: nvidia.com/gpu shared in 2", "kind: ConfigMap"},
		"a bare layout":     {"version: v1\nmig-configs:\n  all: [{devices: all, mig-enabled: true, mig-devices: {2g.20gb: 3}}]\n", "the file: layouts all", "kind: ConfigMap"},
		"a queue of Kueue":  {"apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: q}\nspec: {resourceGroups: [{coveredResources: [nvidia.com/gpu]}]}\n", "deviceClassMappings: [{name: nvidia.com/gpu, deviceClassNames: [gpu.nvidia.com]}]", "No equal"},
		"a kind unheard of": {"apiVersion: example.com/v1\nkind: Unheard\nmetadata: {name: u}\nspec: {limits: {nvidia.com/gpu: 1}}\n", "No equal: this kind is not known here", ""},
		"a template that is not understood": {
			"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: obj}\nspec: {headGroupSpec: {template: {spec: {container: [], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}\n",
			"No equal: RayCluster obj head was left as it is, since its template is not understood", "kind: ResourceClaimTemplate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := converted(t, tc.text, options())
			if !strings.Contains(strings.Join(strings.Fields(got), " "), tc.want) || tc.not != "" && strings.Contains(got, tc.not) {
				t.Errorf("want %q, not %q:\n%s", tc.want, tc.not, got)
			}
		})
	}
}

// Two entries of a ConfigMap have classes of their own, and none has the name of another.
func TestConfigurationsOfSeveralPools(t *testing.T) {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Configs.V1}\ndata:\n" +
		"  a100: '{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}, {name: gpu, replicas: 3}]}}}'\n" +
		"  t4: '{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}, mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}'\n"
	objects, err := state.Decode([]byte(converted(t, text, options())))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		if class, ok := o.(*resourceapi.DeviceClass); ok {
			names = append(names, class.Name)
		}
	}
	want := []string{"configs-v1-a100-gpu-timeslicing", "configs-v1-a100-gpu-timeslicing-2", "configs-v1-t4-gpu-timeslicing", "configs-v1-t4-gpu-mps"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

// Quota on what the plugin counted becomes quota on devices of classes; the same class twice is added up.
func TestQuota(t *testing.T) {
	quota := func(hard string) string {
		return "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: s}\nspec: {hard: {" + hard + "}}\nstatus: {used: {}}\n"
	}
	for hard, want := range map[string]string{
		"requests.nvidia.com/gpu: 8":             `gpu.nvidia.com.deviceclass.resource.k8s.io/devices: "8"`,
		"requests.nvidia.com/mig-3g.40gb: 4":     `mig-3g-40gb.deviceclass.resource.k8s.io/devices: "4"`,
		"requests.nvidia.com/mig-1g.10gb.me: 4":  `mig-1g-10gb-me.deviceclass.resource.k8s.io/devices: "4"`,
		"requests.nvidia.com/gpu.shared: 12":     `shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices: "12"`,
		"limits.nvidia.com/gpu: 8":               "No equal: limits.nvidia.com/gpu. It was left as it is.",
		"requests.nvidia.com/pgpu: 8":            "No equal: requests.nvidia.com/pgpu.",
		"requests.nvidia.com/gpu: 8, pods: 10":   `pods: "10"`,
		"requests.nvidia.com/gpu: 8, cpu: 100m ": "cpu: 100m",
	} {
		out := converted(t, quota(hard), options())
		if !strings.Contains(out, want) || strings.Contains(out, "status:") || !strings.Contains(out, "namespace: s") {
			t.Errorf("%s: no %q in\n%s", hard, want, out)
		}
	}
}

// The driver's own name is in every selector and configuration.
func TestOtherDriver(t *testing.T) {
	o := convert.Options{Driver: "gpu.example.com"}
	for _, text := range []string{
		pod(`{nodeSelector: {nvidia.com/gpu.product: Tesla-T4}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`),
		pod(`{nodeSelector: {nvidia.com/gpu.memory: "16384"}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`),
		pod(`{containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]}`),
		configMap("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"),
	} {
		out := converted(t, text, o)
		if !strings.Contains(out, "gpu.example.com") || strings.Contains(out, `"gpu.nvidia.com"`) || strings.Contains(out, "driver: gpu.nvidia.com") {
			t.Errorf("another driver's name is in\n%s", out)
		}
	}
}

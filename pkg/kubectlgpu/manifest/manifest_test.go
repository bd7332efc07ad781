package manifest_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

func decode(t *testing.T, text string) []runtime.Object {
	t.Helper()
	objects, err := state.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	for name, text := range map[string]string{first: "kind: A", second: "kind: B"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := manifest.Read(strings.NewReader("kind: In"), first, "-", second)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("\n---\nkind: A\n---\nkind: In\n---\nkind: B", string(got)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if _, err := manifest.Read(nil, first, filepath.Join(dir, "absent.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	broken := errors.New("broken pipe")
	if _, err := manifest.Read(failing{broken}, "-"); !errors.Is(err, broken) {
		t.Errorf("an input that fails: %v", err)
	}
	if got, err := manifest.Read(nil); err != nil || len(got) != 0 {
		t.Errorf("no files: %q, %v", got, err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// found is what tests look at of a pod.
type found struct {
	Subject, Namespace, Role, Container string
	Replicas                            int
	Unknown                             bool
}

func pods(objects []runtime.Object) []found {
	var out []found
	for _, o := range objects {
		for _, p := range manifest.PodsOf(o) {
			f := found{Subject: p.Subject, Namespace: p.Namespace, Role: p.Role, Replicas: p.Replicas, Unknown: p.Unknown != nil}
			if len(p.Spec.Containers) > 0 {
				f.Container = p.Spec.Containers[0].Name
			}
			out = append(out, f)
		}
	}
	return out
}

// Each kind of Kubernetes' own that makes pods, with and without its number of replicas.
func TestOwnKinds(t *testing.T) {
	const template = "template: {spec: {containers: [{name: c}]}}"
	for name, tc := range map[string]struct {
		text string
		want []found
	}{
		"pod": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns}\nspec: {containers: [{name: c}]}", []found{{Subject: "Pod p", Namespace: "ns", Container: "c", Replicas: 1}}},
		"pod template": {
			"apiVersion: v1\nkind: PodTemplate\nmetadata: {name: p}\n" + template, []found{{Subject: "PodTemplate p", Container: "c", Replicas: 1}},
		},
		"replication controller": {
			"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: p}\nspec: {replicas: 3, " + template + "}",
			[]found{{Subject: "ReplicationController p", Container: "c", Replicas: 3}},
		},
		"replication controller without a template": {"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: p}\nspec: {replicas: 3}", nil},
		"deployment": {
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p, namespace: ns}\nspec: {replicas: 2, " + template + "}",
			[]found{{Subject: "Deployment p", Namespace: "ns", Container: "c", Replicas: 2}},
		},
		"deployment of none": {
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {replicas: 0, " + template + "}", []found{{Subject: "Deployment p", Container: "c"}},
		},
		"deployment that does not say": {
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {" + template + "}", []found{{Subject: "Deployment p", Container: "c", Replicas: 1}},
		},
		"stateful set": {
			"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: p}\nspec: {replicas: 5, " + template + "}", []found{{Subject: "StatefulSet p", Container: "c", Replicas: 5}},
		},
		"replica set": {
			"apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: p}\nspec: {replicas: 4, " + template + "}", []found{{Subject: "ReplicaSet p", Container: "c", Replicas: 4}},
		},
		"daemon set": {"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: p}\nspec: {" + template + "}", []found{{Subject: "DaemonSet p", Container: "c", Replicas: 1}}},
		"job": {
			"apiVersion: batch/v1\nkind: Job\nmetadata: {name: p}\nspec: {parallelism: 6, " + template + "}", []found{{Subject: "Job p", Container: "c", Replicas: 6}},
		},
		"cron job": {
			"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: p}\nspec: {jobTemplate: {spec: {parallelism: 7, " + template + "}}}",
			[]found{{Subject: "CronJob p", Container: "c", Replicas: 7}},
		},
		"list": {
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}",
			[]found{{Subject: "Pod a", Replicas: 1}, {Subject: "Pod b", Replicas: 1}},
		},
		"no workload": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, pods(decode(t, tc.text))); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}

// The templates of other projects' kinds: which there are, what they are called, and how many
// pods each makes.
func TestForeignKinds(t *testing.T) {
	const template = "template: {spec: {containers: [{name: c}]}}"
	const bare = "{spec: {containers: [{name: c}]}}"
	for name, tc := range map[string]struct {
		text string
		want []found
	}{
		"LeaderWorkerSet": {
			"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: x, namespace: ns}\n" +
				"spec: {replicas: 2, leaderWorkerTemplate: {size: 4, leaderTemplate: " + bare + ", workerTemplate: " + bare + "}}",
			[]found{
				{Subject: "LeaderWorkerSet x leader", Namespace: "ns", Role: "leader", Container: "c", Replicas: 2},
				{Subject: "LeaderWorkerSet x worker", Namespace: "ns", Role: "worker", Container: "c", Replicas: 6},
			},
		},
		"LeaderWorkerSet whose leader is as the workers": {
			"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: x}\nspec: {replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: " + bare + "}}",
			[]found{{Subject: "LeaderWorkerSet x worker", Role: "worker", Container: "c", Replicas: 8}},
		},
		"LeaderWorkerSet of leaders alone": {
			"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: x}\nspec: {leaderWorkerTemplate: {leaderTemplate: " + bare + ", workerTemplate: " + bare + "}}",
			[]found{
				{Subject: "LeaderWorkerSet x leader", Role: "leader", Container: "c", Replicas: 1},
				{Subject: "LeaderWorkerSet x worker", Role: "worker", Container: "c"},
			},
		},
		"JobSet": {
			"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: x}\nspec: {replicatedJobs: [" +
				"{name: driver, template: {spec: {" + template + "}}}, {name: workers, replicas: 2, template: {spec: {parallelism: 4, " + template + "}}}]}",
			[]found{
				{Subject: "JobSet x driver", Role: "driver", Container: "c", Replicas: 1},
				{Subject: "JobSet x workers", Role: "workers", Container: "c", Replicas: 8},
			},
		},
		"RayCluster": {
			"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: x}\nspec: {headGroupSpec: {" + template + "}, workerGroupSpecs: [{groupName: GPU, replicas: 3, " + template + "}]}",
			[]found{
				{Subject: "RayCluster x head", Role: "head", Container: "c", Replicas: 1},
				{Subject: "RayCluster x gpu", Role: "gpu", Container: "c", Replicas: 3},
			},
		},
		"RayJob": {
			"apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: x}\nspec: {rayClusterSpec: {headGroupSpec: {" + template + "}}}",
			[]found{{Subject: "RayJob x head", Role: "head", Container: "c", Replicas: 1}},
		},
		"RayService": {
			"apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: x}\nspec: {rayClusterConfig: {workerGroupSpecs: [{replicas: 2, " + template + "}]}}",
			[]found{{Subject: "RayService x 0", Role: "0", Container: "c", Replicas: 2}},
		},
		"PyTorchJob": {
			"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: x}\nspec: {pytorchReplicaSpecs: {Worker: {replicas: 3, " + template + "}, Master: {" + template + "}}}",
			[]found{
				{Subject: "PyTorchJob x master", Role: "master", Container: "c", Replicas: 1},
				{Subject: "PyTorchJob x worker", Role: "worker", Container: "c", Replicas: 3},
			},
		},
		"MPIJob": {
			"apiVersion: kubeflow.org/v1\nkind: MPIJob\nmetadata: {name: x}\nspec: {mpiReplicaSpecs: {Worker: {replicas: 2, " + template + "}}}",
			[]found{{Subject: "MPIJob x worker", Role: "worker", Container: "c", Replicas: 2}},
		},
		"training runtime": {
			"apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nmetadata: {name: x}\n" +
				"spec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {parallelism: 2, " + template + "}}}]}}}",
			[]found{{Subject: "ClusterTrainingRuntime x node", Role: "node", Container: "c", Replicas: 2}},
		},
		"Rollout": {
			"apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {replicas: 4, " + template + "}",
			[]found{{Subject: "Rollout x", Container: "c", Replicas: 4}},
		},
		"Volcano": {
			"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec: {tasks: [{name: w, replicas: 2, " + template + "}]}",
			[]found{{Subject: "Job x w", Role: "w", Container: "c", Replicas: 2}},
		},
		"field that Kubernetes lacks": {
			"apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {template: {spec: {containerz: 1, containers: [{name: c}]}}}",
			[]found{{Subject: "Rollout x", Container: "c", Replicas: 1, Unknown: true}},
		},
		"template of another shape": {
			"apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {template: {spec: {containers: some}}}",
			[]found{{Subject: "Rollout x", Replicas: 1, Unknown: true}},
		},
		"template that is none": {"apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {template: []}", nil},
		"tasks that are none":   {"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec: {tasks: many}", nil},
		"unknown kind":          {"apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}\nspec: {" + template + "}", nil},
		"another project's Job": {"apiVersion: example.com/v1\nkind: Job\nmetadata: {name: x}\nspec: {" + template + "}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			objects := decode(t, tc.text)
			if len(objects) != 1 {
				t.Fatalf("%d objects", len(objects))
			}
			if diff := cmp.Diff(tc.want, pods(objects)); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}

// A change of a pod is in the object after Store, and nothing else of the object changes.
func TestStore(t *testing.T) {
	object, ok := decode(t, `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: x}
spec:
  queue: q
  tasks:
  - {name: a, template: {metadata: {labels: {l: v}}, spec: {containers: [{name: c}]}}}
  - {name: b, template: {spec: {containers: [{name: d}]}}}
`)[0].(*unstructured.Unstructured)
	if !ok {
		t.Fatal("the object is none of another kind")
	}
	first := manifest.PodsOf(object)[0]
	first.Spec.Containers[0].Image = "new"
	spec, err := first.Store()
	if err != nil || spec == nil {
		t.Fatalf("store: %v, %v", spec, err)
	}
	again := manifest.PodsOf(object)
	if got := again[0].Spec.Containers[0].Image; got != "new" || again[0].Meta.Labels["l"] != "v" {
		t.Errorf("the first task has the image %q and the labels %v", got, again[0].Meta.Labels)
	}
	if got := again[1].Spec.Containers[0]; got.Name != "d" || got.Image != "" {
		t.Errorf("the second task's container is %+v", got)
	}
	if queue, _, _ := unstructured.NestedString(object.Object, "spec", "queue"); queue != "q" {
		t.Errorf("the queue is %q", queue)
	}

	pod := decode(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}")[0]
	own := manifest.PodsOf(pod)[0]
	own.Spec.Containers[0].Image = "new"
	if spec, err := own.Store(); spec != nil || err != nil {
		t.Errorf("store of a pod: %v, %v", spec, err)
	}
	if got := manifest.PodsOf(pod)[0].Spec.Containers[0].Image; got != "new" {
		t.Errorf("the pod's image is %q", got)
	}
}

// Whatever stands where templates are looked for, reading ends, and no pod is without a name.
func TestAnyShape(t *testing.T) {
	kinds := [][2]string{
		{"leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"},
		{"jobset.x-k8s.io/v1alpha2", "JobSet"},
		{"ray.io/v1", "RayCluster"},
		{"kubeflow.org/v1", "PyTorchJob"},
		{"batch.volcano.sh/v1alpha1", "Job"},
		{"argoproj.io/v1alpha1", "Rollout"},
	}
	keys := []string{
		"leaderWorkerTemplate", "leaderTemplate", "workerTemplate", "replicatedJobs", "headGroupSpec", "workerGroupSpecs", "tasks", "template", "spec",
		"replicas", "size", "parallelism", "name", "groupName", "pytorchReplicaSpecs",
	}
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		return rapid.Custom(func(t *rapid.T) any {
			switch n := rapid.IntRange(0, 5).Draw(t, "shape"); {
			case n == 0 || depth == 0:
				return rapid.SampledFrom([]any{nil, int64(3), -1.5, "text", true}).Draw(t, "leaf")
			case n == 1:
				return rapid.SliceOfN(value(depth-1), 0, 2).Draw(t, "list")
			default:
				return rapid.MapOfN(rapid.SampledFrom(keys), value(depth-1), 0, 4).Draw(t, "map")
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": kind[0], "kind": kind[1], "metadata": map[string]any{"name": "x"}, "spec": value(5).Draw(t, "spec"),
		}}
		for _, pod := range manifest.PodsOf(object) {
			if pod.Spec == nil || pod.Meta == nil || pod.Replicas < 0 || !strings.HasPrefix(pod.Subject, kind[1]+" x") {
				t.Fatalf("pod %+v", pod)
			}
		}
	})
}

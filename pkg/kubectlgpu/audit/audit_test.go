package audit_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/audit"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

func good(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func run(t *testing.T, yaml string) finding.Report {
	t.Helper()
	objects, err := state.Decode([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	r, err := audit.Run(objects)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func bad(r finding.Report) map[string]finding.Finding {
	out := map[string]finding.Finding{}
	for _, f := range r.Findings {
		if f.Severity != finding.OK {
			out[f.Check] = f
		}
	}
	return out
}

func TestGoodPod(t *testing.T) {
	r := run(t, good(t))
	if found := bad(r); len(found) > 0 || len(r.Findings) != 13 {
		t.Errorf("%d checks found %v", len(r.Findings), found)
	}
	var b strings.Builder
	if err := r.Text(&b, true); err != nil || strings.Count(b.String(), "ok") < 13 {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

// Each thing that is taken from the good pod is found by its check, and by no other.
func TestEachCheck(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, check, message string }{
		"claim not named":     {"claims: [{name: gpu}], ", "", "claim-used", "no container names claim gpu"},
		"claim not there":     {"claims: [{name: gpu}], ", "claims: [{name: gpu}, {name: other}], ", "claim-used", "other"},
		"both ways":           {"memory: 64Gi}", "memory: 64Gi, nvidia.com/gpu: 1}", "one-way", "nvidia.com/gpu beside"},
		"no memory limit":     {"memory: 64Gi}", "}", "qos", "no limit of memory"},
		"part of a CPU":       {`cpu: "8"`, `cpu: 7500m`, "qos", "7500m CPUs are not whole"},
		"request is less":     {"limits:", `requests: {cpu: "4"}, limits:`, "qos", "request 4 is not the limit 8"},
		"no shm":              {"mountPath: /dev/shm", "mountPath: /tmp", "shm", "nothing is mounted"},
		"shm on disk":         {"emptyDir: {medium: Memory, sizeLimit: 16Gi}", "emptyDir: {sizeLimit: 16Gi}", "shm", "not an emptyDir of medium Memory"},
		"shm without limit":   {", sizeLimit: 16Gi", "", "shm", "no sizeLimit"},
		"small shm":           {"sizeLimit: 16Gi", "sizeLimit: 1Gi", "shm", "1Gi, less than 8Gi"},
		"threads":             {"MKL_NUM_THREADS", "OTHER", "threads", "MKL_NUM_THREADS is not set"},
		"more threads":        {"- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", `- {name: OMP_NUM_THREADS, value: "64"}`, "threads", "OMP_NUM_THREADS is 64, and the container has 8 CPUs"},
		"threads of memory":   {"- {name: MKL_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", "- {name: MKL_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.memory}}}", "threads", "comes from limits.memory, which is no number of CPUs"},
		"threads of a word":   {"- {name: MKL_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", "- {name: MKL_NUM_THREADS, value: all}", "threads", `MKL_NUM_THREADS is "all", which is no number of threads`},
		"no startup probe":    {"startupProbe", "x-startupProbe", "startup-probe", "no startup probe"},
		"short startup":       {"failureThreshold: 60", "failureThreshold: 6", "startup-probe", "allows 60 s"},
		"default startup":     {"failureThreshold: 60, periodSeconds: 10, ", "", "startup-probe", "allows 30 s"},
		"no readiness":        {"readinessProbe", "x-readinessProbe", "probes", "no readiness probe"},
		"no liveness":         {"livenessProbe", "x-livenessProbe", "probes", "no liveness probe"},
		"same probes":         {"/live", "/ready", "probes", "ask the same"},
		"grace":               {"terminationGracePeriodSeconds: 900", "terminationGracePeriodSeconds: 60", "grace", "has 60 s to end"},
		"default grace":       {"terminationGracePeriodSeconds: 900", "", "grace", "has 30 s to end"},
		"no drain":            {"lifecycle", "x-lifecycle", "grace", "no preStop hook"},
		"toleration":          {"key: nvidia.com/gpu", "key: other", "toleration", "no toleration"},
		"NVLink":              {", constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "", "nvlink", "4 GPUs may come from different"},
		"image tag":           {"@sha256:0000000000000000000000000000000000000000000000000000000000000000", ":v1", "image", "can be moved"},
		"image latest":        {"@sha256:0000000000000000000000000000000000000000000000000000000000000000", "", "image", "whatever is newest"},
		"no place for wights": {"persistentVolumeClaim: {claimName: weights}", "emptyDir: {}", "weights", "no volume"},
	} {
		t.Run(name, func(t *testing.T) {
			text := good(t)
			if !strings.Contains(text, tc.old) {
				t.Fatalf("the good pod has no %q", tc.old)
			}
			found := bad(run(t, strings.ReplaceAll(text, tc.old, tc.new)))
			f, ok := found[tc.check]
			if !ok || !strings.Contains(f.Message, tc.message) || f.Why == "" || f.Fix == "" {
				t.Errorf("found %+v, want %s: %s", found, tc.check, tc.message)
			}
			if len(found) != 1 {
				t.Errorf("others found something, too: %v", found)
			}
		})
	}
}

// A legacy pod is checked the same; a pod without a GPU is told so.
func TestOtherPods(t *testing.T) {
	legacy := bad(run(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]}\n"))
	if f := legacy["nvlink"]; !strings.HasPrefix(f.Message, "2 GPUs") || legacy["gpu"].Message != "" {
		t.Errorf("found %v", legacy)
	}
	if f := bad(run(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"))["gpu"]; f.Message != "the pod asks for no GPU" {
		t.Errorf("found %v", f)
	}
	if _, err := audit.Run(nil); err == nil || !strings.Contains(err.Error(), "no pods") {
		t.Errorf("%v", err)
	}
}

// What can be done in several right ways is taken in each of them.
func TestRightWays(t *testing.T) {
	for name, tc := range map[string]struct{ old, new string }{
		"as many threads as CPUs":      {"- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", `- {name: OMP_NUM_THREADS, value: "8"}`},
		"fewer threads":                {"- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", `- {name: OMP_NUM_THREADS, value: "1"}`},
		"threads of the request":       {"- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", `- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}`},
		"threads from a ConfigMap":     {"- {name: OMP_NUM_THREADS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}", `- {name: OMP_NUM_THREADS, valueFrom: {configMapKeyRef: {name: a, key: b}}}`},
		"requests like the limits":     {"limits: {cpu:", `requests: {cpu: "8", memory: 64Gi}, limits: {cpu:`},
		"the smallest /dev/shm":        {"sizeLimit: 16Gi", "sizeLimit: 8Gi"},
		"/dev/shm with a slash behind": {"mountPath: /dev/shm", "mountPath: /dev/shm/"},
		"a startup in small steps":     {"failureThreshold: 60, periodSeconds: 10", "failureThreshold: 600, periodSeconds: 1"},
		"a startup that waits first":   {"failureThreshold: 60, periodSeconds: 10", "initialDelaySeconds: 570, failureThreshold: 3, periodSeconds: 10"},
		"a longer grace":               {"terminationGracePeriodSeconds: 900", "terminationGracePeriodSeconds: 3600"},
		"every taint is tolerated":     {"{key: nvidia.com/gpu, operator: Exists}", "{operator: Exists}"},
		"cliques":                      {"nvlinkDomain", "nvlinkCliques"},
		"one GPU needs no NVLink":      {"count: 4}}], constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "count: 1}}]"},
		"partitions have no NVLink":    {"deviceClassName: gpu.nvidia.com, count: 4}}], constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "deviceClassName: mig-1g-10gb, count: 4}}]"},
		"alternatives of one":          {"{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}], constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "{name: gpu, firstAvailable: [{name: a, deviceClassName: x, count: 1}, {name: b, deviceClassName: z}]}]"},
		"weights in the node's folder": {"persistentVolumeClaim: {claimName: weights}", "hostPath: {path: /models}"},
		"weights in an image":          {"persistentVolumeClaim: {claimName: weights}", "image: {reference: weights}"},
		"weights on NFS":               {"persistentVolumeClaim: {claimName: weights}", "nfs: {server: a, path: /b}"},
		"tag and digest":               {"server@sha256", "server:v1@sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			text := good(t)
			if !strings.Contains(text, tc.old) {
				t.Fatalf("the good pod has no %q", tc.old)
			}
			if found := bad(run(t, strings.ReplaceAll(text, tc.old, tc.new))); len(found) > 0 {
				t.Errorf("found %+v", found)
			}
		})
	}
}

// A container without a GPU is not asked for what GPUs need; every container is asked for whole CPUs and a
// pinned image.
func TestContainersBesideTheGPUs(t *testing.T) {
	sidecar := func(resources, image string) string {
		return strings.Replace(good(t), "      volumes:", "      - {name: sidecar, image: "+image+", resources: {"+resources+"}}\n      volumes:", 1)
	}
	const pinned = "x@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	if found := bad(run(t, sidecar("limits: {cpu: 1, memory: 1Gi}", pinned))); len(found) > 0 {
		t.Errorf("a small sidecar: %+v", found)
	}
	if f := bad(run(t, sidecar("limits: {memory: 1Gi}", pinned)))["qos"]; f.Message != "container sidecar: no limit of cpu" {
		t.Errorf("a sidecar without CPUs: %+v", f)
	}
	if f := bad(run(t, sidecar("limits: {cpu: 1, memory: 1Gi}", "registry:5000/x")))["image"]; f.Message != "container sidecar: image registry:5000/x is whatever is newest" {
		t.Errorf("a sidecar's image: %+v", f)
	}
}

// Pods of every kind of workload are checked, of other projects' too, each under its name.
func TestKinds(t *testing.T) {
	const template = "{spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
	for subject, text := range map[string]string{
		"Job j":                         "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: " + template + "}",
		"CronJob j":                     "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: j}\nspec: {jobTemplate: {spec: {template: " + template + "}}}",
		"StatefulSet s":                 "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec: {template: " + template + "}",
		"LeaderWorkerSet l worker":      "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec: {leaderWorkerTemplate: {workerTemplate: " + template + "}}",
		"RayCluster r head":             "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r}\nspec: {headGroupSpec: {template: " + template + "}}",
		"PyTorchJob p worker":           "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\nspec: {pytorchReplicaSpecs: {Worker: {template: " + template + "}}}",
		"JobSet a workers":              "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a}\nspec: {replicatedJobs: [{name: workers, template: {spec: {template: " + template + "}}}]}",
		"ReplicationController old-one": "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: old-one}\nspec: {template: " + template + "}",
	} {
		found := map[string]bool{}
		for _, f := range run(t, text+"\n").Findings {
			found[f.Subject] = true
		}
		if len(found) != 1 || !found[subject] {
			t.Errorf("%s: subjects %v", subject, found)
		}
	}
}

// FuzzRun: whatever is in the files, each finding names its subject, and every bad one a way out.
func FuzzRun(f *testing.F) {
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a}], containers: [{name: c, env: [{name: OMP_NUM_THREADS}], resources: {limits: {nvidia.com/gpu: -1}}}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := state.Decode(data)
		if err != nil {
			return
		}
		r, err := audit.Run(objects)
		if err != nil {
			return
		}
		for _, f := range r.Findings {
			if f.Check == "" || f.Severity != finding.OK && (f.Why == "" || f.Fix == "" || f.Message == "") {
				t.Errorf("finding %+v", f)
			}
		}
	})
}

func TestCounts(t *testing.T) {
	r := run(t, strings.ReplaceAll(good(t), "claims: [{name: gpu}], ", ""))
	if diff := cmp.Diff([]int{1, 0}, []int{r.Count(finding.Error), r.Count(finding.Warning)}); diff != "" {
		t.Errorf("errors and warnings (-want +got):\n%s", diff)
	}
	var b strings.Builder
	if err := r.Text(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"Deployment llm", "error", "why: a container gets", "fix: add", "13 checks: 1 errors, 0 warnings"} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("no %q in\n%s", w, b.String())
		}
	}
}

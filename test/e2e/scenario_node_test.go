//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// gpuNodeTaint keeps a pod that does not tolerate it from the node.
func gpuNodeTaint(p *pack) {
	const taint = "nvidia.com/gpu=present:NoSchedule"
	p.Cleanup(func() {
		if out, err := p.try(context.WithoutCancel(p.Context()), "", "taint", "node", cluster.NodeName(islands), taint+"-"); err != nil {
			p.Errorf("end of the test: %v: %s", err, out)
		}
	})
	p.run("", "taint", "node", cluster.NodeName(islands), taint)
	p.apply()
	p.holds(p.running("tolerant")[0], 1)
	p.create(rig.Objects{plainPod("intolerant", islands)})
	p.prints(p.pending("intolerant"), "untolerated taint")
}

// faultyGPU takes one GPU out of scheduling and brings it back.
func faultyGPU(p *pack) {
	rules := p.client.ResourceV1().DeviceTaintRules()
	p.apply()
	rule, err := rules.Get(p.Context(), "faulty-gpu", metav1.GetOptions{})
	p.must(err)
	device := *rule.Spec.DeviceSelector.Device
	all, err := rig.GPUs(p.Context(), p.client)
	p.must(err)
	uuid := ""
	for _, g := range all {
		if g.Node == cluster.NodeName(islands) && g.Device == device {
			uuid = g.UUID
		}
	}
	if uuid == "" {
		p.Fatalf("%s has no device %s", cluster.NodeName(islands), device)
	}
	// A scheduler that has not seen the rule yet places the pod: it is taken away, and the next one waits.
	name := "waits"
	for tries := 1; ; tries++ {
		p.create(newPod(name, islands, request{cel: is("uuid", uuid)}))
		if !p.placed(name) {
			break
		}
		p.remove(name)
		name = fmt.Sprintf("waits-%d", tries)
	}
	p.unallocatable(name)
	p.prints(p.kubectlGPU("", "explain", "pod", name), "example.com/faulty")
	p.must(rules.Delete(p.Context(), rule.Name, metav1.DeleteOptions{}))
	p.holds(p.running(name)[0], 1)
}

// placed waits until the scheduler has decided about a pod, and tells whether it found a place.
func (s *scene) placed(name string) (placed bool) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, "the scheduler has looked at pod "+name, func(ctx context.Context) (string, error) {
		pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && (c.Status == corev1.ConditionTrue || c.Reason == corev1.PodReasonUnschedulable) {
				placed = c.Status == corev1.ConditionTrue
				return "", nil
			}
		}
		return "it has not", nil
	}))
	return placed
}

// twoTeams counts what each team claims by class.
func twoTeams(p *pack) {
	p.apply()
	for _, namespace := range []string{"team-a", "team-b"} {
		p.must(rig.Wait(p.Context(), podLimit, "the quota of "+namespace+" is in force", func(ctx context.Context) (string, error) {
			quota, err := p.client.CoreV1().ResourceQuotas(namespace).Get(ctx, "gpus", metav1.GetOptions{})
			if err != nil || len(quota.Status.Hard) == len(quota.Spec.Hard) {
				return "", err
			}
			return "its status is empty", nil
		}))
	}
	team := *p.scene
	team.namespace = "team-b"
	p.same("profiles", []string{"3g.40gb"}, profiles(team.seesParts(team.running("half-a-gpu")[0])))
	for class, counts := range map[string][2]int{"gpu.nvidia.com": {4, 8}, "mig-3g.40gb": {1, 4}, "mig-1g.10gb": {0, 14}, "mig.nvidia.com": {0, 0}} {
		for i, namespace := range []string{"team-b", "team-a"} {
			manifest := func(name string, count int) string {
				return strings.Replace(claimManifest(name, class, count), `"name": "`+name+`"`, fmt.Sprintf(`"name": %q, "namespace": %q`, name, namespace), 1)
			}
			p.refused(manifest("too-many", counts[i]+1), "exceeded quota: gpus", class)
			if counts[i] > 0 {
				p.run(manifest(strings.ReplaceAll(class, ".", "-"), counts[i]), "create", "--dry-run=server", "-f", "-")
			}
		}
	}
}

// module is the folder of a Go module, which carries the CRDs of the project that it is of.
func (p *pack) module(path, version, sum string) string {
	p.Helper()
	cmd := exec.CommandContext(p.Context(), "go", "mod", "download", "-json", path+"@"+version)
	// Outside this module, whose own modules it must not touch.
	cmd.Dir = p.TempDir()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		p.Fatalf("download of %s: %v: %s%s", path, err, out, exit.Stderr)
	}
	p.must(err)
	var found struct{ Dir, Sum string }
	p.must(json.Unmarshal(out, &found))
	if found.Sum != sum {
		p.Fatalf("%s@%s has the sum %s, not %s", path, version, found.Sum, sum)
	}
	return found.Dir
}

// serve has the API server know other kinds until the test ends.
func (p *pack) serve(dir string, names ...string) {
	p.Helper()
	var files []string
	for _, name := range names {
		files = append(files, "-f", filepath.Join(dir, name+".yaml"))
	}
	p.Cleanup(func() {
		out, err := p.try(context.WithoutCancel(p.Context()), "", append([]string{"delete", "--ignore-not-found"}, files...)...)
		if err != nil {
			p.Errorf("end of the test: %v: %s", err, out)
		}
	})
	// Some are too large for the annotation of an ordinary apply.
	p.run("", append([]string{"apply", "--server-side"}, files...)...)
	get := append([]string{"get", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Established")].status}{"\n"}{end}{.status.conditions[?(@.type=="Established")].status}`}, files...)
	p.must(rig.Wait(p.Context(), podLimit, "the API server serves "+strings.Join(names, ", "), func(ctx context.Context) (string, error) {
		out, err := p.try(ctx, "", get...)
		if err == nil && strings.Count(out, "True") == len(names) {
			return "", nil
		}
		return out, nil
	}))
}

// leaderWorkerSet is what the project's own schema allows, and pods made from its templates are what
// the API server takes.
func leaderWorkerSet(p *pack) {
	dir := p.module("sigs.k8s.io/lws", "v0.8.0", "h1:DdhJ8QabwTfWgbgaHH2gdf8twliioHaoSfmDXRYEVU0=")
	p.serve(filepath.Join(dir, "config/crd/bases"), "leaderworkerset.x-k8s.io_leaderworkersets")
	p.apply()
	templates := 0
	for document := range strings.SplitSeq(p.manifest, "\n---\n") {
		object := unstructured.Unstructured{}
		p.must(yaml.Unmarshal([]byte(document), &object.Object))
		if object.GetKind() != "LeaderWorkerSet" {
			continue
		}
		for _, name := range []string{"leaderTemplate", "workerTemplate"} {
			spec, _, err := unstructured.NestedMap(object.Object, "spec", "leaderWorkerTemplate", name, "spec")
			p.must(err)
			pod, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": strings.ToLower(name)}, "spec": spec})
			p.must(err)
			p.run(string(pod), "create", "--dry-run=server", "-f", "-")
			templates++
		}
	}
	if templates != 2 {
		p.Errorf("%d templates of pods", templates)
	}
}

// kueue is what the project's own schemas allow.
func kueue(p *pack) {
	dir := p.module("sigs.k8s.io/kueue", "v0.17.0", "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=")
	p.serve(filepath.Join(dir, "config/components/crd/bases"),
		"kueue.x-k8s.io_resourceflavors", "kueue.x-k8s.io_clusterqueues", "kueue.x-k8s.io_localqueues", "kueue.x-k8s.io_workloadpriorityclasses")
	p.apply()
	job, err := p.client.BatchV1().Jobs(p.namespace).Get(p.Context(), "queued", metav1.GetOptions{})
	p.must(err)
	if job.Spec.Suspend == nil || !*job.Spec.Suspend {
		p.Error("the Job does not wait for the queue")
	}
}

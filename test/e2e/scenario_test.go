//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// packLimit bounds the start of the pods of a scenario. Those of many scenarios start at once.
const packLimit = 100 * time.Second

// scenarios are the files of demo/specs that show a way of using GPUs, and what must come of each.
// Those of one group run one after the other, the groups side by side.
func scenarios() map[string][]scenario {
	return map[string][]scenario{
		"partitions": {
			{"scenarios/mig-by-model-size", migByModelSize},
			{"scenarios/seven-small-services", sevenSmallServices},
			{"scenarios/two-teams", twoTeams},
		},
		"whole": {
			{"scenarios/inference-server", inferenceServer},
			{"four-on-one-nvlink-domain", tensorParallel},
			{"memory-40gi", atLeast40Gi},
			{"first-available", thisElseThat},
			{"scenarios/online-before-training", onlineBeforeTraining},
		},
		"one for several": {
			{"scenarios/mps", byMPS},
			{"time-slicing", byTimeSlices},
		},
		"shares": {
			{"scenarios/twenty-engineers", twentyEngineers},
			{"share-of-a-gpu", shareOfGPU},
			{"share-by-memory", shareByMemory},
		},
		"nodes": {
			{"scenarios/gpu-node-taint", gpuNodeTaint},
			{"scenarios/faulty-gpu", faultyGPU},
		},
		"others' kinds": {
			{"scenarios/leader-worker-set", leaderWorkerSet},
			{"scenarios/kueue", kueue},
			{"scenarios/autoscale", autoscale},
		},
	}
}

type scenario struct {
	file  string
	check func(*pack)
}

// sharedNode is the node that has GPUs for shares: two in four parts each, and one by memory.
const sharedNode = bridges

// TestScenarios applies each file of the pack as a person would, with another image and another
// node's name, and looks at what comes of it.
func TestScenarios(t *testing.T) {
	s := begin(t)
	hgx, err := nodefile.Preset("hgx-h100-8")
	s.must(err)
	ctx := context.WithoutCancel(t.Context())
	s.must(s.Uninstall(ctx, s.client))
	_, err = s.MakeMachine(ctx, cube, hgx)
	s.must(err)
	t.Cleanup(func() {
		if err := s.Uninstall(ctx, s.client); err != nil {
			t.Errorf("end of the test: %v", err)
		}
		if _, err := s.NewMachine(ctx, cube); err != nil {
			t.Errorf("end of the test: %v", err)
		}
		if err := s.Install(ctx, version, s.values); err != nil {
			t.Errorf("end of the test: %v", err)
		}
	})
	s.must(s.Install(ctx, version, rig.Values{
		"rescanInterval": "1s", "logVerbosity": "4", "migDevices": "on-demand",
		"sharing.mps.enabled": "true", "sharing.mps.shmSize": "16m",
		"sharing.devices[0].nodes[0]": cluster.NodeName(sharedNode), "sharing.devices[0].enforcement": "none", "sharing.devices[0].replicas": "4",
		"sharing.devices[0].devices.indices[0]": "0", "sharing.devices[0].devices.indices[1]": "1",
		"sharing.devices[1].nodes[0]": cluster.NodeName(sharedNode), "sharing.devices[1].enforcement": "cooperative",
		"sharing.devices[1].devices.indices[0]": "2",
	}))
	s.must(s.ready(t.Context()))
	t.Run("groups", func(t *testing.T) {
		for name, group := range scenarios() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, c := range group {
					t.Run(filepath.Base(c.file), func(t *testing.T) { c.check(unpack(t, c.file)) })
				}
			})
		}
	})
	listed := map[string]bool{}
	for _, group := range scenarios() {
		for _, c := range group {
			listed[c.file+".yaml"] = true
		}
	}
	files, err := filepath.Glob(filepath.Join(s.Repository, "demo/specs/scenarios/*.yaml"))
	s.must(err)
	for _, file := range files {
		if name := "scenarios/" + filepath.Base(file); !listed[name] {
			t.Errorf("nobody applies %s", name)
		}
	}
}

// pack is a scene with one file of the pack.
type pack struct {
	*scene

	// text is the file's, manifest what is applied.
	text, manifest string
	// config is a kubeconfig whose namespace is the scene's. Objects may name another one.
	config string
}

var exampleImage = regexp.MustCompile(`ubuntu:24\.04(@sha256:[0-9a-f]{64})?`)

// unpack begins a scene and applies the file there. Its objects go before the scene's namespace.
func unpack(t *testing.T, file string) *pack {
	t.Helper()
	p := newPack(t)
	text, err := os.ReadFile(filepath.Join(p.Repository, "demo/specs", file+".yaml"))
	p.must(err)
	p.text = string(text)
	p.manifest = strings.ReplaceAll(exampleImage.ReplaceAllString(p.text, cluster.WorkloadImage), "gpu-node-1", cluster.NodeName(islands))
	return p
}

// newPack begins a scene whose kubectl has the scene's namespace.
func newPack(t *testing.T) *pack {
	t.Helper()
	p := &pack{scene: begin(t), config: filepath.Join(t.TempDir(), "kubeconfig")}
	config, err := os.ReadFile(p.Nodes.Kubeconfig())
	p.must(err)
	p.must(os.WriteFile(p.config, config, 0o600))
	p.run("", "config", "set-context", "--current", "--namespace", p.namespace)
	return p
}

// apply makes the objects of the file, which are deleted when the test ends.
func (p *pack) apply() {
	p.Helper()
	p.Cleanup(func() {
		out, err := p.try(context.WithoutCancel(p.Context()), p.manifest, "delete", "--ignore-not-found", "--timeout=2m", "-f", "-")
		if err != nil {
			p.Errorf("kubectl delete: %v: %s", err, out)
		}
	})
	p.run(p.manifest, "apply", "-f", "-")
}

// try runs kubectl in the scene's namespace.
func (p *pack) try(ctx context.Context, in string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Cluster.Bin, "kubectl"), append([]string{"--kubeconfig", p.config}, args...)...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &out
	err := cmd.Run()
	return out.String(), err
}

// run runs kubectl, which must succeed.
func (p *pack) run(in string, args ...string) string {
	p.Helper()
	out, err := p.try(p.Context(), in, args...)
	if err != nil {
		p.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused checks that the API server does not take a manifest, and says so with those words.
func (p *pack) refused(manifest string, words ...string) {
	p.Helper()
	out, err := p.try(p.Context(), manifest, "create", "-f", "-")
	if err == nil {
		p.Errorf("was taken: %s", manifest)
	}
	p.prints(out, words...)
}

// up waits until as many pods of the label are ready as there are to be, and returns them.
func (p *pack) up(count int, label string) []*corev1.Pod {
	p.Helper()
	return p.upIn(p.namespace, count, label)
}

func (p *pack) upIn(namespace string, count int, label string) []*corev1.Pod {
	p.Helper()
	var pods []*corev1.Pod
	p.must(rig.Wait(p.Context(), packLimit, "pods of "+label+" are ready", func(ctx context.Context) (string, error) {
		list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return "", err
		}
		pods = nil
		var others []string
		for i := range list.Items {
			if pod := &list.Items[i]; isReady(pod) && pod.DeletionTimestamp == nil {
				pods = append(pods, pod)
			} else {
				others = append(others, pod.Name+" is "+string(pod.Status.Phase))
			}
		}
		if len(pods) != count {
			return strings.Join(append(others, "the others are ready"), ", "), nil
		}
		return "", nil
	}))
	return pods
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

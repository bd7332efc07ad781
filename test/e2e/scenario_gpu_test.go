//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// modelCache is the folder of the node that the inference server's pod wants.
const modelCache = "/var/lib/models"

// inferenceServer is one GPU with the pod specification that the audit has nothing to say about.
func inferenceServer(p *pack) {
	if _, err := os.Stat(modelCache); errors.Is(err, os.ErrNotExist) {
		p.Cleanup(func() {
			// Nodes see the machine's folders. The namespace, made before, is emptied after this.
			if err := p.empty(context.WithoutCancel(p.Context()), p.namespace); err != nil {
				p.Error(err)
			}
			if err := os.Remove(modelCache); err != nil {
				p.Error(err)
			}
		})
	}
	p.prints(p.kubectlGPU(p.text, "audit", "-f", "-", "--fail-on", "warning"), "0 errors, 0 warnings")
	p.apply()
	pod := p.up(1, "app=inference-server")[0]
	p.holds(pod, 1)
	if pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		p.Errorf("the pod's class is %s", pod.Status.QOSClass)
	}
	out, err := p.exec(pod.Name, "server", "sh", "-c", "df -k /dev/shm; echo $OMP_NUM_THREADS $MKL_NUM_THREADS CPU; ls -d /models")
	p.must(err)
	p.prints(out, fmt.Sprint(8<<20), "1 1 CPU", "/models")
}

func tensorParallel(p *pack) {
	p.apply()
	p.oneDomain("four-on-one-nvlink-domain", p.holds(p.running("four-on-one-nvlink-domain")[0], 4))
}

func atLeast40Gi(p *pack) {
	p.apply()
	if g := p.holds(p.running("memory-40gi")[0], 1)[0]; g.Memory.Cmp(resource.MustParse("40Gi")) < 0 {
		p.Errorf("%s has %s", g.Device, g.Memory.String())
	}
}

// thisElseThat finds no H200, and takes the next best.
func thisElseThat(p *pack) {
	p.apply()
	if g := p.holds(p.running("first-available")[0], 1)[0]; g.Request != "gpu/large" {
		p.Errorf("%s, a %s, was given for %q", g.Device, g.Product, g.Request)
	}
}

// onlineBeforeTraining has the online service take the GPUs from training, and give them back. It
// begins with training alone: a scheduler that is given both at once may preempt a pod before that is
// bound, and then looks at the other one again only minutes later.
func onlineBeforeTraining(p *pack) {
	p.apply()
	const online, training = "app=online", "app=training"
	p.run("", "scale", "deployment", "online", "--replicas=0")
	p.up(0, online)
	trains := p.up(1, training)[0]
	p.oneDomain(trains.Name, p.holds(trains, 2))
	p.run("", "scale", "deployment", "online", "--replicas=1")
	serves := p.up(1, online)[0]
	p.oneDomain(serves.Name, p.holds(serves, 2))
	p.up(0, training)
	p.event("Preempted", "Pod/"+trains.Name)
	p.run("", "scale", "deployment", "online", "--replicas=0")
	if again := p.up(1, training)[0]; again.UID == trains.UID {
		p.Error("training was not preempted")
	}
}

// migByModelSize cuts one GPU for two models, by what they need.
func migByModelSize(p *pack) {
	p.apply()
	parts := p.seesParts(p.running("mig-by-model-size")[0])
	p.same("requests", []string{"chat", "embeddings"}, []string{parts[0].Request, parts[1].Request})
	// Boards with 94 GB have larger ones of the same shares.
	p.same("shares", []string{"3g", "1g"}, []string{share(parts[0]), share(parts[1])})
	if len(parents(parts)) != 1 {
		p.Errorf("the partitions are of %q", parents(parts))
	}
}

// share is what a partition has of its GPU, "3g".
func share(part rig.GPU) string {
	share, _, _ := strings.Cut(part.Profile, ".")
	return share
}

// sevenSmallServices fills one GPU.
func sevenSmallServices(p *pack) {
	p.apply()
	var all []rig.GPU
	for _, pod := range p.up(7, "app=small-service") {
		all = append(all, p.seesParts(pod)...)
	}
	p.same("profiles", slices.Repeat([]string{"1g.10gb"}, 7), profiles(all))
	if len(parents(all)) != 1 {
		p.Errorf("the seven are on %q", parents(all))
	}
}

// byMPS has three processes on one GPU, each with its limit.
func byMPS(p *pack) {
	p.apply()
	seen := map[string]int{}
	for _, pod := range p.up(3, "batch.kubernetes.io/job-name=mps") {
		seen[p.holds(pod, 1)[0].UUID]++
		p.tries(pod.Name, 8000, "thread_percentage=33.0", "total=8000")
		p.tries(pod.Name, 9000, "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit of 8192 MiB")
	}
	if len(seen) != 1 {
		p.Errorf("pods by GPU: %v", seen)
	}
}

// byTimeSlices has two pods take long turns on one GPU, which takes ordinary ones afterwards.
func byTimeSlices(p *pack) {
	p.apply()
	pods := p.running("time-slicing-first", "time-slicing-second")
	first, second := p.holds(pods[0], 1)[0], p.holds(pods[1], 1)[0]
	if first.UUID != second.UUID {
		p.Errorf("the pods have %s and %s", first.Device, second.Device)
	}
	node, number := p.numberOf(first.UUID)
	p.shares(node, number, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
	p.remove(pods[0].Name, pods[1].Name)
	p.shares(node, number, gpusim.Sharing{})
}

// numberOf finds a GPU by its UUID.
func (s *scene) numberOf(uuid string) (node, number int) {
	s.Helper()
	for node := range s.Presets {
		machine, err := s.Machine(s.Context(), node)
		s.must(err)
		if i := slices.Index(machine.UUIDs(), uuid); i >= 0 {
			return node, i
		}
	}
	s.Fatalf("no machine has GPU %s", uuid)
	return 0, 0
}

// twentyEngineers fills the eight places, two GPUs in four, beside a whole GPU. The quota keeps
// everybody to them.
func twentyEngineers(p *pack) {
	p.apply()
	holders := map[string]int{}
	for _, pod := range p.up(8, "app=experiments") {
		holders[p.holds(pod, 1)[0].UUID]++
		if *pod.Spec.Priority != -10 {
			p.Errorf("pod %s has the priority %d", pod.Name, *pod.Spec.Priority)
		}
	}
	if len(holders) != 2 || holders[p.gpu(sharedNode, 0)] != 4 || holders[p.gpu(sharedNode, 1)] != 4 {
		p.Errorf("experiments by GPU: %v", holders)
	}
	if whole := p.holds(p.up(1, "app=whole-gpu-training")[0], 1)[0]; holders[whole.UUID] != 0 {
		p.Errorf("training has %s, which is in shares", whole.Device)
	}
	p.refused(claimManifest("ninth", "shared.gpu.nvidia.com", 1), "exceeded quota: gpus")
	p.refused(claimManifest("two-more", "gpu.nvidia.com", 2), "exceeded quota: gpus")
}

// claimManifest is a claim for a number of devices of a class.
func claimManifest(name, class string, count int) string {
	return fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q},
		"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": %q, "count": %d}}]}}}`, name, class, count)
}

func shareOfGPU(p *pack) {
	p.apply()
	if node, number := p.numberOf(p.holds(p.running("share-of-a-gpu")[0], 1)[0].UUID); node != sharedNode || number > 2 {
		p.Errorf("the share is of GPU %d of node %d", number, node)
	}
}

// shareByMemory has a part of the GPU's memory, of which its container is told.
func shareByMemory(p *pack) {
	p.apply()
	pod := p.running("share-by-memory")[0]
	if got := p.holds(pod, 1)[0].UUID; got != p.gpu(sharedNode, 2) {
		p.Errorf("the share is of %s", got)
	}
	out, err := p.exec(pod.Name, "main", "sh", "-c", "echo $NVIDIA_GPU_MEMORY_LIMIT")
	p.must(err)
	p.same("limit", []string{"4096"}, []string{strings.TrimSpace(out)})
}

//go:build e2e && soak

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// soakLimit bounds the life of one pod of the soak: a prepare that was cut off is repeated by the
// kubelet after one to two minutes.
const soakLimit = 10 * time.Minute

// TestSoakOnACluster runs SOAK_PODS short pods (300 by default) with one or two GPUs each, on all
// nodes, while plugins and kubelets are killed at random. One pod in ten is deleted by force while
// it runs. All must end well, and nothing of them may be left: no record, no claim, no file.
func TestSoakOnACluster(t *testing.T) {
	s := begin(t)
	s.repairAfterFailure()
	pods, err := strconv.Atoi(cmp.Or(os.Getenv("SOAK_PODS"), "300"))
	s.must(err)
	before := s.weigh()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var killing sync.WaitGroup
	var kills [2]int
	killing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			which, err := s.killOne(context.WithoutCancel(ctx))
			if err != nil {
				t.Errorf("kill %d: %v", i, err)
				return
			}
			kills[which]++
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(5+rand.IntN(10)) * time.Second):
			}
		}
	})
	began := time.Now()
	nodes := []int{islands, islands, bridges, bridges, cube, mixed}
	turns := make(chan int, pods)
	for i := range pods {
		turns <- i
	}
	close(turns)
	var working sync.WaitGroup
	for w, node := range nodes {
		working.Go(func() {
			for turn := range turns {
				if err := s.soakPod(t.Context(), fmt.Sprintf("soak-%d-%d", w, turn), node, turn); err != nil {
					t.Errorf("pod %d on %s: %v", turn, cluster.NodeName(node), err)
				}
			}
		})
	}
	working.Wait()
	took := time.Since(began)
	stop()
	killing.Wait()
	s.must(s.ready(t.Context()))
	// What is left of pods whose end a kill cut off goes with the reconciler.
	s.must(rig.Wait(t.Context(), soakLimit, "nothing is left of the pods", func(context.Context) (string, error) {
		for i := range s.Presets {
			if left := s.records(i); len(left) > 0 {
				return fmt.Sprintf("%s has the records %q", cluster.NodeName(i), left), nil
			}
			now, err := s.files(i)
			if err != nil {
				return "", err
			}
			// The base spec is made with a node's first claim, and a GPU's lock with its first one.
			now = slices.DeleteFunc(now, func(f string) bool {
				name := filepath.Base(f)
				return slices.Contains(before[i].files, f) || name == rig.Driver+"-driver.json" || strings.HasPrefix(name, "gpu_")
			})
			if len(now) > 0 {
				return fmt.Sprintf("%s has the files %q", cluster.NodeName(i), now), nil
			}
		}
		return "", nil
	}))
	after := s.weigh()
	t.Logf("%d pods in %s; %d kills of plugins, %d of kubelets", pods, took.Round(time.Second), kills[0], kills[1])
	for i := range s.Presets {
		t.Logf("%s before: %s", cluster.NodeName(i), before[i])
		t.Logf("%s after:  %s", cluster.NodeName(i), after[i])
	}
}

// soakPod runs one pod to its end and removes it.
func (s *scene) soakPod(ctx context.Context, name string, node, turn int) error {
	objects := newPod(name, node, request{count: int64(1 + turn%2)})
	pod := objects.Pods()[0]
	force := turn%10 == 9
	if !force {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "nvidia-smi -L && sleep 1"}
	}
	objects.Into(s.namespace)
	if err := objects.Create(ctx, s.client); err != nil {
		return err
	}
	pods := s.client.CoreV1().Pods(s.namespace)
	err := rig.Wait(ctx, soakLimit, "it runs, or has run", func(ctx context.Context) (string, error) {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		switch phase := now.Status.Phase; {
		case phase == corev1.PodSucceeded, force && phase == corev1.PodRunning, cutOff(now):
			return "", nil
		case phase == corev1.PodFailed:
			return "", fmt.Errorf("it failed: %s", now.Status.String())
		default:
			return string(phase), nil
		}
	})
	if err != nil {
		return err
	}
	options := metav1.DeleteOptions{}
	if force {
		options.GracePeriodSeconds = new(int64)
	}
	if err := pods.Delete(ctx, name, options); err != nil {
		return err
	}
	return rig.Wait(ctx, soakLimit, "it is gone", func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return "it is there", nil
	})
}

// cutOff tells whether a pod ended because its kubelet was killed while the runtime made its
// container: such a pod is not started again, and its claim has to end all the same.
func cutOff(pod *corev1.Pod) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.Reason == "StartError" && strings.HasSuffix(t.Message, "context canceled") {
			return true
		}
	}
	return false
}

// killOne kills the plugin (0) or the kubelet (1) of some node.
func (s *scene) killOne(ctx context.Context) (which int, err error) {
	node := rand.IntN(len(s.Presets))
	if rand.IntN(4) == 0 {
		if err := s.ClusterCommand(ctx, "stop", fmt.Sprintf("kubelet-%d", node), "KILL"); err != nil {
			return 1, err
		}
		return 1, s.ClusterCommand(ctx, "up")
	}
	for _, pod := range s.plugins(ctx) {
		if pod.Spec.NodeName != cluster.NodeName(node) || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Running == nil {
			continue
		}
		// It may have been killed a moment ago.
		_ = s.Nodes.Ctr(ctx, node, "tasks", "kill", "--signal", "SIGKILL", containerID(&pod)).Run()
	}
	return 0, nil
}

// weight is what the driver has of a node.
type weight struct {
	files []string
	// bytes is their size.
	bytes                           int64
	goroutines, fds, heap, resident string
}

func (w weight) String() string {
	return fmt.Sprintf("%d files with %d bytes; goroutines %s, open files %s, heap %s and resident %s bytes",
		len(w.files), w.bytes, w.goroutines, w.fds, w.heap, w.resident)
}

// weigh looks at every node.
func (s *scene) weigh() []weight {
	s.Helper()
	all := make([]weight, len(s.Presets))
	for i := range s.Presets {
		w := &all[i]
		var err error
		w.files, err = s.files(i)
		s.must(err)
		for _, f := range w.files {
			if info, err := os.Stat(f); err == nil { // it may have gone since
				w.bytes += info.Size()
			}
		}
		text, err := s.page(s.Context(), s.plugin(i).Name, "metrics")
		s.must(err)
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch name {
			case "go_goroutines":
				w.goroutines = value
			case "process_open_fds":
				w.fds = value
			case "go_memstats_heap_alloc_bytes":
				w.heap = value
			case "process_resident_memory_bytes":
				w.resident = value
			}
		}
	}
	return all
}

// files are those of the driver on a node. A socket has another name in each pod.
func (s *scene) files(node int) ([]string, error) {
	var all []string
	for _, dir := range []string{s.dataDir(node), s.Nodes.CDIDir(node)} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.Type().IsRegular() {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

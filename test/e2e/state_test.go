//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// events are the texts of the Events of that reason in the test's namespace.
func (s *scene) events(ctx context.Context, reason string) ([]string, error) {
	list, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, e := range list.Items {
		if e.Reason == reason {
			texts = append(texts, fmt.Sprintf("%s/%s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message))
		}
	}
	return texts, nil
}

// slicesOf are the versions of a node's slices: they change with every write.
func (s *scene) slicesOf(node int) map[string]string {
	s.Helper()
	list, err := rig.Slices(s.Context(), s.client)
	s.must(err)
	versions := map[string]string{}
	for _, slice := range list {
		if slice.Spec.NodeName != nil && *slice.Spec.NodeName == cluster.NodeName(node) {
			versions[slice.Name] = slice.ResourceVersion
		}
	}
	if len(versions) == 0 {
		s.Fatalf("%s has no slices", cluster.NodeName(node))
	}
	return versions
}

// records are the claims that the plugin on a node has a record of.
func (s *scene) records(node int) []string {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dataDir(node), "claims"))
	s.must(err)
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// dataDir is the plugin's directory on a node.
func (s *suite) dataDir(node int) string {
	return filepath.Join(s.Nodes.KubeletRoot(node), "plugins", rig.Driver)
}

// containerID is the runtime's name of a pod's first container.
func containerID(pod *corev1.Pod) string {
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// undisturbed checks that a pod runs as it did: the same container, with the same GPUs.
func (s *scene) undisturbed(before *corev1.Pod, count int) {
	s.Helper()
	after := s.running(before.Name)[0]
	if after.UID != before.UID || containerID(after) != containerID(before) {
		s.Errorf("pod %s was started again", before.Name)
	}
	s.holds(after, count)
}

// ended checks that a pod with claims can end, and that no record of it is left.
func (s *scene) ended(node int, names ...string) {
	s.Helper()
	s.remove(names...)
	if left := s.records(node); len(left) != 0 {
		s.Errorf("records are left on %s: %q", cluster.NodeName(node), left)
	}
}

// slicesOfNode are those of the slices that belong to a node.
func slicesOfNode(all []resourceapi.ResourceSlice, node int) []resourceapi.ResourceSlice {
	return slices.DeleteFunc(slices.Clone(all), func(slice resourceapi.ResourceSlice) bool {
		return slice.Spec.NodeName == nil || *slice.Spec.NodeName != cluster.NodeName(node)
	})
}

// noFailedPrepare checks that the kubelet never said that a prepare failed.
func (s *scene) noFailedPrepare() {
	s.Helper()
	failed, err := s.events(s.Context(), "FailedPrepareDynamicResources")
	s.must(err)
	for _, text := range failed {
		s.Errorf("a prepare failed: %s", text)
	}
}

// nodeEvent waits for an Event of the driver on a node with these words.
func (s *scene) nodeEvent(reason, words string) {
	s.Helper()
	at := *s
	at.namespace = metav1.NamespaceDefault
	at.event(reason, words)
}

// failures sums, over the plugins that run, the claims that could not be prepared or undone.
func (s *scene) failures() map[string]float64 {
	s.Helper()
	sums := map[string]float64{}
	for _, pod := range s.plugins(s.Context()) {
		if pod.DeletionTimestamp != nil {
			continue // it may end before it answers
		}
		text, err := s.page(s.Context(), pod.Name, "metrics")
		s.must(err)
		for line := range strings.Lines(string(text)) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
			if !ok || !strings.HasPrefix(name, "gpu_dra_call_failures_total") {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			s.must(err)
			if n > 0 {
				sums[pod.Name+" "+name+"}"] += n
			}
		}
	}
	return sums
}

// event waits for an Event of that reason in the test's namespace whose text has these words.
func (s *scene) event(reason, words string) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, "there is an Event "+reason, func(ctx context.Context) (string, error) {
		texts, err := s.events(ctx, reason)
		for _, text := range texts {
			if strings.Contains(text, words) {
				return "", nil
			}
		}
		return strings.Join(append([]string{"it does not say " + words}, texts...), "\n"), err
	}))
}

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

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

// TestPluginKilled kills the plugin's process while a pod uses GPUs: the pod runs on, the slices
// are not written, and the new process can undo what the old one did.
func TestPluginKilled(t *testing.T) {
	s := begin(t)
	user, _ := s.start("user", islands, request{count: 2})
	before := s.slicesOf(islands)
	plugin := s.plugin(islands)
	out, err := s.Nodes.Ctr(t.Context(), islands, "tasks", "kill", "--signal", "SIGKILL", containerID(plugin)).CombinedOutput()
	if err != nil {
		t.Fatalf("kill the plugin: %v: %s", err, out)
	}
	s.must(rig.Wait(t.Context(), podLimit, "the plugin is back", func(ctx context.Context) (string, error) {
		now, err := s.client.CoreV1().Pods(rig.Namespace).Get(ctx, plugin.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := now.Status.ContainerStatuses[0]
		if status.RestartCount == plugin.Status.ContainerStatuses[0].RestartCount || !status.Ready {
			return fmt.Sprintf("%d restarts, ready: %t", status.RestartCount, status.Ready), nil
		}
		return "", nil
	}))
	s.undisturbed(user, 2)
	s.start("next", islands, request{})
	s.ended(islands, "user", "next")
	if diff := cmp.Diff(before, s.slicesOf(islands)); diff != "" {
		t.Errorf("the slices were written (-before +after):\n%s", diff)
	}
}

// TestPluginPodDeleted replaces the plugin's pod while a pod uses GPUs.
func TestPluginPodDeleted(t *testing.T) {
	s := begin(t)
	user, _ := s.start("user", islands, request{count: 2})
	before := s.slicesOf(islands)
	plugin := s.plugin(islands)
	s.must(s.client.CoreV1().Pods(rig.Namespace).Delete(t.Context(), plugin.Name, metav1.DeleteOptions{}))
	s.must(rig.Wait(t.Context(), podLimit, "the plugin's pod is replaced", func(ctx context.Context) (string, error) {
		for _, pod := range s.plugins(ctx) {
			if pod.UID == plugin.UID {
				return "the old one is there", nil
			}
		}
		return "", nil
	}))
	s.must(s.ready(t.Context()))
	s.undisturbed(user, 2)
	s.start("next", islands, request{})
	s.ended(islands, "user", "next")
	if diff := cmp.Diff(before, s.slicesOf(islands)); diff != "" {
		t.Errorf("the slices were written (-before +after):\n%s", diff)
	}
	sockets, err := filepath.Glob(filepath.Join(s.dataDir(islands), "*.sock"))
	s.must(err)
	if len(sockets) != 1 {
		t.Errorf("%d plugins left these sockets: %q", 1, sockets)
	}
}

// TestKubeletRestart kills the kubelet while a pod uses GPUs. The new one wipes the node's slices:
// they must be back within five seconds.
func TestKubeletRestart(t *testing.T) {
	s := begin(t)
	user, _ := s.start("user", islands, request{count: 2})
	list, err := s.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	s.must(err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	changes, err := s.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{
		ResourceVersion: list.ResourceVersion,
		FieldSelector:   resourceapi.ResourceSliceSelectorNodeName + "=" + cluster.NodeName(islands),
	})
	s.must(err)
	defer changes.Stop()
	gap := make(chan time.Duration, 1)
	go func() { gap <- sliceGap(changes.ResultChan(), len(slicesOfNode(list.Items, islands))) }()

	s.must(s.ClusterCommand(t.Context(), "stop", fmt.Sprintf("kubelet-%d", islands), "KILL"))
	s.must(s.ClusterCommand(t.Context(), "up"))
	away := <-gap
	t.Logf("the slices were away for %s", away.Round(time.Millisecond))
	if away == 0 || away > 5*time.Second {
		t.Errorf("the slices came back after %s; 0 means that they were not wiped, or not seen again", away)
	}
	s.must(s.ready(t.Context()))
	s.must(rig.Wait(t.Context(), podLimit, "the kubelet serves the pod again", func(context.Context) (string, error) {
		out, err := s.exec(user.Name, "main", "true")
		if err != nil {
			return out, nil
		}
		return "", nil
	}))
	s.undisturbed(user, 2)
	s.start("next", islands, request{})
	s.ended(islands, "user", "next")
}

// slicesOfNode are those of the slices that belong to a node.
func slicesOfNode(all []resourceapi.ResourceSlice, node int) []resourceapi.ResourceSlice {
	return slices.DeleteFunc(slices.Clone(all), func(slice resourceapi.ResourceSlice) bool {
		return slice.Spec.NodeName == nil || *slice.Spec.NodeName != cluster.NodeName(node)
	})
}

// sliceGap is the time from the deletion of the last of n slices until n are there again; 0 if
// the watch ended before.
func sliceGap(changes <-chan watch.Event, n int) time.Duration {
	var wiped time.Time
	deleted, added := 0, 0
	for change := range changes {
		switch change.Type {
		case watch.Deleted:
			deleted++
			added, wiped = 0, time.Now()
		case watch.Added:
			added++
		}
		if deleted >= n && added == n {
			return time.Since(wiped)
		}
	}
	return 0
}

// TestForceDelete takes a pod with all GPUs out of the API at once, while its container runs on
// and another pod waits for the same GPUs: the second must not start before the first has ended.
func TestForceDelete(t *testing.T) {
	s := begin(t)
	beats, err := os.MkdirTemp(s.Machines, "beats-")
	s.must(err)
	t.Cleanup(func() {
		if err := os.RemoveAll(beats); err != nil {
			t.Error(err)
		}
	})
	pod := func(name, script string) rig.Objects {
		objects := newPod(name, islands, request{count: 8})
		spec := &objects.Pods()[0].Spec
		spec.Containers[0].Command = []string{"sh", "-c", script}
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "beats", MountPath: "/beats"}}
		spec.Volumes = []corev1.Volume{{Name: "beats", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: beats}}}}
		return objects
	}
	// Deaf to SIGTERM, it runs until the kubelet kills it.
	s.create(pod("first", `trap "" TERM; while :; do touch /beats/first; usleep 10000; done`))
	first := s.holds(s.running("first")[0], 8)
	s.create(pod("second", `trap "exit 0" TERM; touch /beats/second; sleep infinity & wait`))
	s.unallocatable("second")
	now := int64(0)
	s.must(s.client.CoreV1().Pods(s.namespace).Delete(t.Context(), "first", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	second := s.holds(s.running("second")[0], 8)
	if diff := cmp.Diff(rig.UUIDs(first), rig.UUIDs(second)); diff != "" {
		t.Fatalf("the pods did not want the same GPUs (-first +second):\n%s", diff)
	}
	beat := func(name string) time.Time {
		info, err := os.Stat(filepath.Join(beats, name))
		s.must(err)
		return info.ModTime()
	}
	last, begun := beat("first"), beat("second")
	t.Logf("the second pod's container started %s after the first one's last sign of life", begun.Sub(last).Round(time.Millisecond))
	if !begun.After(last) {
		t.Errorf("two containers had the same GPUs for %s", last.Sub(begun))
	}
	s.noFailedPrepare()
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

// TestGPULost takes a GPU off the bus while the plugin runs: that device leaves, whoever uses the
// others does not notice, who used it can end, and it returns when it answers again.
func TestGPULost(t *testing.T) {
	s := begin(t)
	machine, err := s.Machine(t.Context(), islands)
	s.must(err)
	t.Cleanup(func() {
		for i := range machine.GPUCount() {
			if err := machine.HealGPU(i); err != nil {
				t.Error(err)
			}
		}
	})
	victim, lost := s.start("victim", islands, request{})
	user, _ := s.start("user", islands, request{count: 2})
	plugin := s.plugin(islands)
	number := slices.Index(machine.UUIDs(), lost[0].UUID)
	s.must(machine.LoseGPU(number))
	published := func(want bool) {
		t.Helper()
		s.must(rig.Wait(t.Context(), 30*time.Second, fmt.Sprintf("GPU %s is published: %t", lost[0].Device, want), func(ctx context.Context) (string, error) {
			gpus, err := rig.GPUs(ctx, s.client)
			gpus = slices.DeleteFunc(gpus, func(g rig.GPU) bool { return g.Node != cluster.NodeName(islands) })
			is := slices.ContainsFunc(gpus, func(g rig.GPU) bool { return g.UUID == lost[0].UUID })
			if err != nil || is == want && len(gpus) >= 7 {
				return "", err
			}
			return fmt.Sprintf("%d GPUs are published", len(gpus)), nil
		}))
	}
	published(false)
	s.nodeEvent("GPUUnusable", lost[0].PCI)
	s.undisturbed(user, 2)
	s.start("meanwhile", islands, request{count: 5})
	s.create(newPod("too-many", islands, request{}))
	s.unallocatable("too-many")
	s.remove(victim.Name)
	s.must(machine.HealGPU(number))
	published(true)
	back := s.holds(s.running("too-many")[0], 1)
	if diff := cmp.Diff(lost[0].Device, back[0].Device); diff != "" {
		t.Errorf("device that came back (-before +after):\n%s", diff)
	}
	if now := s.plugin(islands); containerID(now) != containerID(plugin) {
		t.Error("the plugin was started again")
	}
	s.ended(islands, "user", "meanwhile", "too-many")
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

// TestRollingUpdate changes the plugin under a stream of short pods, to an older build and back:
// both instances of a node serve for a while, and no prepare may fail.
func TestRollingUpdate(t *testing.T) {
	s := begin(t)
	archive, err := s.BuildImage(t.Context(), olderVersion)
	s.must(err)
	s.must(s.ClusterCommand(t.Context(), "load", archive))
	t.Cleanup(func() {
		// Whatever went wrong, the next test finds the driver as it was.
		if t.Failed() {
			if err := s.Upgrade(context.WithoutCancel(t.Context()), version, s.values); err != nil {
				t.Error(err)
			}
		}
	})
	user, _ := s.start("user", islands, request{count: 2})
	before := s.slicesOf(islands)

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan streamResult)
	streams := []int{islands, islands, bridges}
	for i, node := range streams {
		go func() { done <- s.stream(ctx, fmt.Sprintf("short-%d", i), node) }()
	}
	began := time.Now()
	s.must(s.Upgrade(t.Context(), olderVersion, s.values))
	annotated := maps.Clone(s.values)
	annotated["kubeletPlugin.podAnnotations.e2e"] = "changed"
	s.must(s.Upgrade(t.Context(), version, annotated))
	s.must(s.Upgrade(t.Context(), version, s.values))
	took := time.Since(began)
	stop()
	total := 0
	for range streams {
		result := <-done
		total += result.pods
		if result.err != nil {
			t.Errorf("stream of pods: %v", result.err)
		}
	}
	t.Logf("%d pods came and went during three updates of %s", total, took.Round(time.Second))
	if total < len(streams)*3 {
		t.Errorf("%d pods are no load", total)
	}
	s.noFailedPrepare()
	for series, n := range s.failures() {
		t.Errorf("%s = %v", series, n)
	}
	s.undisturbed(user, 2)
	s.ended(islands, "user")
	if diff := cmp.Diff(before, s.slicesOf(islands)); diff != "" {
		t.Errorf("the slices were written (-before +after):\n%s", diff)
	}
}

// streamResult is how many pods a stream had, and what went wrong.
type streamResult struct {
	pods int
	err  error
}

// stream runs one short pod with a GPU after the other until the context ends.
func (s *scene) stream(ctx context.Context, name string, node int) (result streamResult) {
	objects := newPod(name, node, request{})
	pod := objects.Pods()[0]
	pod.Spec.Containers[0].Command = []string{"nvidia-smi", "-L"}
	objects.Into(s.namespace)
	// A pod that was begun is ended, so that the last one counts as well.
	whole := context.WithoutCancel(ctx)
	if result.err = objects[:1].Create(whole, s.client); result.err != nil {
		return result
	}
	for ; ctx.Err() == nil; result.pods++ {
		if result.err = s.onePod(whole, pod.DeepCopy()); result.err != nil {
			return result
		}
	}
	return result
}

// onePod runs a pod to its end and removes it.
func (s *scene) onePod(ctx context.Context, pod *corev1.Pod) error {
	pods := s.client.CoreV1().Pods(s.namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := rig.Wait(ctx, podLimit, "pod "+pod.Name+" has ended well", func(ctx context.Context) (string, error) {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		switch now.Status.Phase {
		case corev1.PodSucceeded:
			return "", nil
		case corev1.PodFailed:
			return "", fmt.Errorf("it failed: %s", now.Status.Message)
		default:
			return string(now.Status.Phase), nil
		}
	})
	if err != nil {
		return err
	}
	text, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return err
	}
	if uuids, err := rig.ParseList(string(text)); err != nil || len(uuids) != 1 {
		return fmt.Errorf("pod %s saw %q: %w", pod.Name, uuids, err)
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return rig.Wait(ctx, podLimit, "pod "+pod.Name+" is gone", func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return "it is there", nil
	})
}

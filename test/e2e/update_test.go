//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// TestRollingUpdate changes the plugin under a stream of short pods, to an older build and back:
// both instances of a node serve for a while, and no prepare may fail.
func TestRollingUpdate(t *testing.T) {
	s := begin(t)
	older, same := s.older()
	archive, err := older.BuildImage(t.Context(), olderVersion)
	s.must(err)
	s.must(s.ClusterCommand(t.Context(), "load", archive))
	s.repairAfterFailure()
	user, _ := s.start("user", islands, request{count: 2})
	before := s.slicesOf(islands)

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan streamResult)
	streams := []int{islands, islands, bridges}
	for i, node := range streams {
		go func() { done <- s.stream(ctx, fmt.Sprintf("short-%d", i), node) }()
	}
	began := time.Now()
	s.must(older.Upgrade(t.Context(), olderVersion, s.values))
	s.serves(olderVersion)
	annotated := maps.Clone(s.values)
	annotated["kubeletPlugin.podAnnotations.e2e"] = "changed"
	s.must(s.Upgrade(t.Context(), version, annotated))
	s.must(s.Upgrade(t.Context(), version, s.values))
	s.serves(version)
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
	s.noFailedPrepare()
	for series, n := range s.failures() {
		t.Errorf("%s = %v", series, n)
	}
	s.undisturbed(user, 2)
	s.ended(islands, "user")
	// Another revision may publish other slices.
	if diff := cmp.Diff(before, s.slicesOf(islands)); same && diff != "" {
		t.Errorf("the slices were written (-before +after):\n%s", diff)
	}
}

// older is where the older release comes from: the revision of the repository that E2E_OLDER names, with the
// chart of that time, or the same source.
func (s *scene) older() (from *rig.Rig, same bool) {
	s.Helper()
	revision := os.Getenv("E2E_OLDER")
	if revision == "" {
		return s.Rig, true
	}
	from, err := s.Revision(s.Context(), revision)
	s.must(err)
	return from, false
}

// serves checks that every plugin is of that version.
func (s *scene) serves(version string) {
	s.Helper()
	for _, pod := range s.plugins(s.Context()) {
		if pod.DeletionTimestamp != nil {
			continue
		}
		text, err := s.page(s.Context(), pod.Name, "metrics")
		s.must(err)
		if want := fmt.Sprintf("gpu_dra_build_info{version=%q} 1", version); !strings.Contains(string(text), want) {
			s.Errorf("the metrics of %s do not say %s", pod.Name, want)
		}
	}
}

// streamResult is how many pods a stream had, and what went wrong.
type streamResult struct {
	pods int
	err  error
}

// stream runs one short pod with a GPU after the other until the context ends, and at least three:
// fewer are no load, however slow the machine is.
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
	for ; ctx.Err() == nil || result.pods < 3; result.pods++ {
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

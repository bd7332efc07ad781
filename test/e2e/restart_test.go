//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// TestPluginKilled kills the plugin's process while a pod uses GPUs: the pod runs on, the slices
// are not written, and the new process can undo what the old one did.
func TestPluginKilled(t *testing.T) {
	s := begin(t)
	user, _ := s.start("user", islands, request{count: 2})
	before := s.slicesOf(islands)
	began := time.Now()
	s.killPlugin(islands)
	t.Logf("the next process was ready %s after the kill", time.Since(began).Round(time.Millisecond))
	s.undisturbed(user, 2)
	s.start("next", islands, request{})
	s.ended(islands, "user", "next")
	if diff := cmp.Diff(before, s.slicesOf(islands)); diff != "" {
		t.Errorf("the slices were written (-before +after):\n%s", diff)
	}
}

// killPlugin kills the plugin's process on a node and waits for the next one.
func (s *scene) killPlugin(node int) {
	s.Helper()
	plugin := s.plugin(node)
	out, err := s.Nodes.Ctr(s.Context(), node, "tasks", "kill", "--signal", "SIGKILL", containerID(plugin)).CombinedOutput()
	if err != nil {
		s.Fatalf("kill the plugin: %v: %s", err, out)
	}
	s.must(rig.Wait(s.Context(), podLimit, "the plugin is back on "+cluster.NodeName(node), func(ctx context.Context) (string, error) {
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
	sockets, err := filepath.Glob(filepath.Join(s.dataDir(islands), "dra*.sock"))
	s.must(err)
	if len(sockets) != 1 {
		t.Errorf("one plugin runs, with these sockets: %q", sockets)
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
		if out, err := s.exec(user.Name, "main", "true"); err != nil {
			return fmt.Sprintf("%v: %s", err, out), nil
		}
		return "", nil
	}))
	s.undisturbed(user, 2)
	s.start("next", islands, request{})
	s.ended(islands, "user", "next")
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
